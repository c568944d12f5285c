//! Who owns what, for people and programs.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{Instances, clock, wire::Claimant};

/// How the partitions of a consumer are divided between its instances, as this process saw it last.
///
/// Displayed as one line: what is owned here, and the full map.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Ownership {
    /// The topic.
    pub topic: Arc<str>,
    /// The consumer's name.
    pub consumer: Arc<str>,
    /// How they are divided.
    pub mode: Instances,
    /// Who this process is; `None` when it is no member itself, as where an operator looks from outside.
    pub me: Option<Member>,
    /// What this process's claims are worth.
    pub standing: Standing,
    /// The partitions that this process owns, ascending.
    pub owned: Vec<u32>,
    /// Of each partition, who owns it.
    pub owners: Vec<Option<Member>>,
    /// All instances that are present.
    pub members: Vec<Member>,
    /// Partitions that two instances take for their own, with the other one.
    pub contested: Vec<(u32, Member)>,
    /// For how long partitions have been nobody's, where some are.
    pub unowned_for: Option<Duration>,
    /// How long partitions may be nobody's without anybody having to look: one interval of renewal.
    pub unowned_alarm: Duration,
}

/// What the claims of an instance are worth.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Standing {
    /// They hold.
    Holding,
    /// None is made: the consumer has not begun to, or has ended.
    Joining,
    /// They were not renewed in time: until they are, nothing is handled here.
    Lapsed,
    /// A process that started later goes by the same name, and this one stands down.
    Superseded,
}

/// An instance of a consumer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
#[non_exhaustive]
pub struct Member {
    /// Its id, as claims and positions name it; all zeros when its claim names none.
    pub instance: String,
    /// Its pod, or machine.
    pub pod: String,
    /// What tells one start of it from another; empty where claims are made by another implementation.
    pub epoch: String,
}

impl From<&Claimant> for Member {
    fn from(c: &Claimant) -> Self {
        Self {
            instance: c.instance().to_string(),
            pod: c.pod().to_owned(),
            epoch: c.incarnation().to_owned(),
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.instance.bytes().all(|b| b"0-".contains(&b)) {
            return f.write_str(&self.pod); // somebody who says no more
        }
        write!(f, "{}({:.8})", self.pod, self.instance)
    }
}

impl Ownership {
    /// Nobody has looked yet.
    pub(crate) fn unseen(
        topic: &Arc<str>,
        consumer: &Arc<str>,
        mode: Instances,
        me: Option<&Claimant>,
        unowned_alarm: Duration,
    ) -> Self {
        Self {
            topic: Arc::clone(topic),
            consumer: Arc::clone(consumer),
            mode,
            me: me.map(Member::from),
            standing: Standing::Joining,
            owned: Vec::new(),
            owners: Vec::new(),
            members: Vec::new(),
            contested: Vec::new(),
            unowned_for: None,
            unowned_alarm,
        }
    }

    /// The partitions that nobody owns, ascending.
    pub fn unowned(&self) -> Vec<u32> {
        let all = (0..).zip(&self.owners);
        all.filter_map(|(p, o)| o.is_none().then_some(p)).collect()
    }

    /// Whether every partition has one owner.
    pub fn is_whole(&self) -> bool {
        self.owners.iter().all(Option::is_some) && self.contested.is_empty()
    }
}

/// The map as it was last drawn.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) seen: Ownership,
    unowned_since: Option<Instant>,
}

impl Map {
    pub(super) fn of(seen: Ownership) -> Self {
        Self {
            seen,
            unowned_since: None,
        }
    }

    /// What it says at this moment.
    pub(super) fn now(&self) -> Ownership {
        Ownership {
            unowned_for: self.unowned_since.map(|since| since.elapsed()),
            ..self.seen.clone()
        }
    }

    /// Draws it anew; true when it says something new.
    pub(super) fn draw(&mut self, seen: Ownership) -> bool {
        if seen.owners.contains(&None) {
            self.unowned_since.get_or_insert_with(clock::now);
        } else {
            self.unowned_since = None;
        }
        let changed = self.seen != seen;
        self.seen = seen;
        changed
    }
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(me) = &self.me {
            let (owned, n) = (Ranges(&self.owned), self.owners.len());
            write!(f, "{me} owns partitions {owned} of {n}")?;
            if !me.epoch.is_empty() {
                write!(f, ", epoch {}", me.epoch)?;
            }
            f.write_str(" | ")?;
        }
        f.write_str("full map:")?;
        for (p, owner) in self.owners.iter().enumerate() {
            match owner {
                Some(owner) => write!(f, " {p}->{owner}")?,
                None => write!(f, " {p}->(none)")?,
            }
        }
        Ok(())
    }
}

/// Partitions, neighbours drawn together: `[0-3,7]`.
pub(crate) struct Ranges<'a>(pub(crate) &'a [u32]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        let mut comma = "";
        for run in self.0.chunk_by(|a, b| a + 1 == *b) {
            match run {
                [.., last] if run.len() > 1 => write!(f, "{comma}{}-{last}", run[0])?,
                _ => write!(f, "{comma}{}", run[0])?,
            }
            comma = ",";
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::InstanceId;

    #[test]
    fn a_line_says_who_owns_what() {
        let me = Claimant::new(InstanceId::derive("svc-0"), "svc-0");
        let foreign = Claimant::read(b"11c7db43-78ec-ec85-be43-a32aea5fd96e|svc-1");
        let odd = Claimant::read(b"who knows");
        let names = ["orders".into(), "billing".into()];
        let mut map = Ownership::unseen(
            &names[0],
            &names[1],
            Instances::Lease,
            Some(&me),
            Duration::ZERO,
        );
        assert!(map.is_whole(), "nothing is known to be wrong");
        map.owned = vec![0, 1, 2, 5];
        map.owners = [&me, &me, &me, &foreign, &odd, &me]
            .map(|c| Some(Member::from(c)))
            .to_vec();
        map.owners.push(None);
        assert_eq!(
            map.to_string(),
            format!(
                "svc-0(1b3a45ca) owns partitions [0-2,5] of 7, epoch {} | full map: \
                 0->svc-0(1b3a45ca) 1->svc-0(1b3a45ca) 2->svc-0(1b3a45ca) 3->svc-1(11c7db43) \
                 4->who knows 5->svc-0(1b3a45ca) 6->(none)",
                me.incarnation()
            )
        );
        assert_eq!((map.unowned(), map.is_whole()), (vec![6], false));
        map.me = None;
        map.owners.truncate(1);
        assert_eq!(map.to_string(), "full map: 0->svc-0(1b3a45ca)");
        assert_eq!(Ranges(&[]).to_string(), "[]");
    }
}
