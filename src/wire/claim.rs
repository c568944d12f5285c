//! Who owns a partition, as the ownership hash has it: fields and values.

use super::InstanceId;

/// What a claim, or an instance's sign of life, says: `<instance id>|<pod>`. Of our own, the pod's name
/// ends in `#` and the incarnation, which tells two processes apart that take themselves for one pod.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Claimant(Box<str>);

/// The mark between a pod's name and its incarnation.
const INCARNATION: char = '#';

impl Claimant {
    /// This process, from now on: a value that no other process and no earlier start has.
    pub(crate) fn new(instance: InstanceId, pod: &str) -> Self {
        let fresh = InstanceId::random().to_string();
        let incarnation = fresh.split('-').next().unwrap_or_default();
        Self(format!("{instance}|{pod}{INCARNATION}{incarnation}").into())
    }

    /// Whatever stands in the hash.
    pub(crate) fn read(value: &[u8]) -> Self {
        Self(String::from_utf8_lossy(value).into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The instance, or all zeros when the value names none.
    pub(crate) fn instance(&self) -> InstanceId {
        let id = self.0.split_once('|').map(|(id, _)| id);
        id.and_then(|id| InstanceId::parse(id.as_bytes()))
            .unwrap_or_default()
    }

    /// The pod's name, without the incarnation; all of the value when it names no instance.
    pub(crate) fn pod(&self) -> &str {
        let text = match self.0.split_once('|') {
            Some((id, pod)) if InstanceId::parse(id.as_bytes()).is_some() => pod,
            _ => &self.0,
        };
        text.rsplit_once(INCARNATION).map_or(text, |(pod, _)| pod)
    }

    /// What tells this process from another of the same pod; peers have none.
    pub(crate) fn incarnation(&self) -> &str {
        self.0.rsplit_once(INCARNATION).map_or("", |(_, i)| i)
    }

    /// The field that shows that an instance lives.
    pub(crate) fn presence(&self) -> String {
        presence_of(self.instance())
    }
}

/// The field that shows that an instance lives.
pub(crate) fn presence_of(instance: InstanceId) -> String {
    format!("{PRESENCE}{instance}")
}

/// What the fields begin with that show who lives; the others are partitions.
pub(crate) const PRESENCE: &str = "i:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_claims_under_its_own_value() {
        let id = InstanceId::derive("svc-0");
        let (a, b) = (Claimant::new(id, "svc-0"), Claimant::new(id, "svc-0"));
        assert_ne!(a, b);
        for c in [&a, &b] {
            assert_eq!((c.instance(), c.pod()), (id, "svc-0"));
            assert_eq!(c.incarnation().len(), 8);
            assert!(
                c.as_str()
                    .starts_with("1b3a45ca-59c5-d080-8e1c-02429c2efc50|svc-0#")
            );
            assert_eq!(c.presence(), "i:1b3a45ca-59c5-d080-8e1c-02429c2efc50");
            assert_eq!(Claimant::read(c.as_str().as_bytes()), *c);
        }
    }

    #[test]
    fn whatever_a_peer_wrote_can_be_shown() {
        for (value, id, pod) in [
            (
                "1b3a45ca-59c5-d080-8e1c-02429c2efc50|svc-0",
                "svc-0",
                "svc-0",
            ),
            ("|svc", "", "|svc"),
            ("no bar", "", "no bar"),
            ("not an id|svc", "", "not an id|svc"),
            ("", "", ""),
        ] {
            let c = Claimant::read(value.as_bytes());
            let id = if id.is_empty() {
                InstanceId::default()
            } else {
                InstanceId::derive(id)
            };
            assert_eq!(
                (c.instance(), c.pod(), c.incarnation()),
                (id, pod, ""),
                "{value}"
            );
        }
    }
}
