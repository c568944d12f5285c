//! The ownership hash, as anybody can read it.

use std::collections::{BTreeMap, BTreeSet};

use streamlane::testing::{PrivateServer, Reply};

use crate::{PARTITIONS, common::ownership_key};

/// Who lives and who owns what: whole values, which tell one start of a pod from another.
#[derive(Debug, Default)]
pub struct Claims {
    pub members: BTreeSet<String>,
    pub owners: BTreeMap<u32, String>,
}

impl Claims {
    pub fn read(server: &PrivateServer) -> Self {
        let all = server.command(&["HGETALL", &ownership_key()]).unwrap();
        let mut claims = Self::default();
        for pair in all.items().chunks_exact(2) {
            let [name, value] = [&pair[0], &pair[1]].map(Reply::text);
            if name.starts_with("i:") {
                claims.members.insert(value);
            } else if let Ok(p) = name.parse() {
                claims.owners.insert(p, value);
            }
        }
        claims
    }

    /// The partitions of whoever goes by this name.
    pub fn of(&self, pod: &str) -> Vec<u32> {
        let pod = format!("|{pod}#");
        let of = self.owners.iter().filter(|(_, value)| value.contains(&pod));
        of.map(|(p, _)| *p).collect()
    }

    /// How many partitions each member owns, least first; `None` unless each has one owner, who lives.
    pub fn shares(&self) -> Option<Vec<usize>> {
        let whole = self.owners.len() as u32 == PARTITIONS;
        let alive = self.owners.values().all(|o| self.members.contains(o));
        let share = |m: &String| self.owners.values().filter(|o| *o == m).count();
        let mut shares: Vec<usize> = self.members.iter().map(share).collect();
        shares.sort_unstable();
        (whole && alive).then_some(shares)
    }

    /// Whether so many members, none of which has two more than another, own everything.
    pub fn is_even(&self, members: usize) -> bool {
        let even = |s: Vec<usize>| s.len() == members && s[members - 1] - s[0] <= 1;
        self.shares().is_some_and(even)
    }
}
