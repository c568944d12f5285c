//! What somebody should know about a server that would lose data.

use std::{collections::HashMap, time::Duration};

use crate::net::{Connection, ServerTrouble};

/// What the one look at the server's configuration may cost.
const TIMEOUT: Duration = Duration::from_secs(1);

/// One look at what the server would lose, silent where it is not permitted; and at its version.
pub(super) fn advise(connection: &mut Connection) {
    if let Some(trouble) = connection.server_version().and_then(ServerTrouble::of) {
        log::warn!(
            "{}: the server is of a version that is known to break: {}; {}; upgrade to {} or later",
            connection.endpoint(),
            trouble.what,
            trouble.avoided,
            trouble.mended
        );
    }
    let mut cmd = redis::cmd("CONFIG");
    cmd.arg("GET")
        .arg("save")
        .arg("appendonly")
        .arg("maxmemory")
        .arg("maxmemory-policy");
    let Ok(answer) = connection.call(&cmd, TIMEOUT) else {
        return;
    };
    let Ok(config) = redis::from_redis_value::<HashMap<String, String>>(answer) else {
        return;
    };
    for line in advice(|key| config.get(key).map(String::as_str)) {
        log::warn!("{}: {line}", connection.endpoint());
    }
}

/// What somebody should know about a server so configured.
fn advice<'c>(get: impl Fn(&str) -> Option<&'c str>) -> Vec<String> {
    let mut lines = Vec::new();
    if get("save") == Some("") && get("appendonly") == Some("no") {
        lines.push(
            "the server keeps nothing on disk: a restart loses every message, position and claim \
             (set appendonly yes)"
                .to_owned(),
        );
    }
    let limited = get("maxmemory").is_some_and(|m| m != "0");
    if let Some(policy) = get("maxmemory-policy").filter(|p| limited && *p != "noeviction") {
        // volatile policies only evict keys with a TTL, of which topics and positions have none
        let what = if policy.starts_with("allkeys") {
            "whole topics and positions"
        } else {
            "claims and markers that carry a TTL"
        };
        lines.push(format!(
            "maxmemory-policy is {policy}: when memory is short the server deletes {what} unread \
             (set maxmemory-policy noeviction)"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_given_where_data_would_be_lost() {
        let of = |pairs: &[(&str, &'static str)]| {
            let map: HashMap<_, _> = pairs.iter().copied().collect();
            advice(|k| map.get(k).copied())
        };
        assert!(of(&[("save", "3600 1"), ("appendonly", "no")]).is_empty());
        assert!(of(&[("save", ""), ("appendonly", "yes")]).is_empty());
        assert!(of(&[("save", ""), ("appendonly", "no")])[0].contains("nothing on disk"));
        assert!(of(&[("maxmemory", "0"), ("maxmemory-policy", "allkeys-lru")]).is_empty());
        assert!(of(&[("maxmemory", "1"), ("maxmemory-policy", "noeviction")]).is_empty());
        assert!(
            of(&[("maxmemory", "1"), ("maxmemory-policy", "allkeys-lru")])[0]
                .contains("whole topics")
        );
        assert!(of(&[("maxmemory", "1"), ("maxmemory-policy", "volatile-ttl")])[0].contains("TTL"));
        assert!(of(&[]).is_empty(), "nothing known, nothing said");
    }
}
