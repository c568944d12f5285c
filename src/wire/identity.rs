//! Who an instance is: the id that claims and positions carry, the pod it runs in, and the name its
//! connections show to `CLIENT LIST`.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
};

use sha2::{Digest, Sha256};

use crate::clock;

/// Bytes of an id in its text form.
pub(crate) const GUID_LEN: usize = 36;

/// Where the text form has its hyphens.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

const CLIENT_NAME_MAX: usize = 256;

/// The id of an instance, written like `1b3a45ca-59c5-d080-8e1c-02429c2efc50`.
///
/// It holds its bytes in the order of the text, so it compares as the text does, which is what
/// breaks ties between instances.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct InstanceId([u8; 16]);

impl InstanceId {
    /// Nobody: what is read where no id was written.
    #[cfg(test)]
    pub(crate) const ZERO: Self = Self([0; 16]);

    /// Stamped on what an operator writes, so that no instance takes it for its own or a rival's.
    pub(crate) const ADMIN: Self = Self(*b"orangeAdminReset");

    /// The id that belongs to a name, the same in every process and every implementation.
    pub(crate) fn derive(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut b = [0; 16];
        b.copy_from_slice(&digest[..16]);
        b[6] = b[6] & 0x0f | 0x80;
        b[8] = b[8] & 0x3f | 0x80;
        // Peers keep the first three groups little-endian in memory, which turns them round in text.
        b[0..4].reverse();
        b[4..6].reverse();
        b[6..8].reverse();
        Self(b)
    }

    /// A new id, different at every call and in every process.
    pub(crate) fn random() -> Self {
        let mut b = random_bytes();
        b[6] = b[6] & 0x0f | 0x40;
        b[8] = b[8] & 0x3f | 0x80;
        Self(b)
    }

    /// The id of this process: of its `POD_NAME`, else of its host and `STREAMS_INSTANCE_INDEX`,
    /// else random, but then the same at every call. Set but empty counts as not set.
    pub(crate) fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Self {
        static OF_PROCESS: OnceLock<InstanceId> = OnceLock::new();
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        if let Some(pod) = set("POD_NAME") {
            Self::derive(&pod)
        } else if let Some(index) = set("STREAMS_INSTANCE_INDEX") {
            Self::derive(&format!("{}#{index}", host_name()))
        } else {
            *OF_PROCESS.get_or_init(Self::random)
        }
    }

    /// Reads the text form, in either case.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        if text.len() != GUID_LEN || HYPHENS.iter().any(|at| text[*at] != b'-') {
            return None;
        }
        let mut digits = text
            .iter()
            .enumerate()
            .filter(|(at, _)| !HYPHENS.contains(at))
            .map(|(_, digit)| Some(char::from(*digit).to_digit(16)? as u8));
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            *byte = digits.next()?? << 4 | digits.next()??;
        }
        Some(Self(bytes))
    }

    /// The text form.
    pub(crate) fn encode(self) -> [u8; GUID_LEN] {
        let digits = self.0.iter().flat_map(|b| [b >> 4, b & 0x0f]);
        let mut text = [b'-'; GUID_LEN];
        let free = text
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| !HYPHENS.contains(at));
        for ((_, slot), digit) in free.zip(digits) {
            *slot = b"0123456789abcdef"[usize::from(digit)];
        }
        text
    }
}

/// Bytes that differ at every call and in every process. No secret is made of them.
pub(super) fn random_bytes() -> [u8; 16] {
    // Each RandomState has fresh keys out of the system's randomness. Process and time keep a
    // forked child, which inherits them, apart from its parent.
    let (state, salt) = (RandomState::new(), (std::process::id(), clock::wall()));
    let mut b = [0; 16];
    b[..8].copy_from_slice(&state.hash_one((salt, 0)).to_le_bytes());
    b[8..].copy_from_slice(&state.hash_one((salt, 1)).to_le_bytes());
    b
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.encode()))
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The pod this process runs in, for people to read: `POD_NAME` without surrounding blanks, else the
/// name of the host, else `unknown`.
pub(crate) fn pod_name(lookup: impl Fn(&str) -> Option<String>) -> String {
    let pod = lookup("POD_NAME").unwrap_or_default();
    match pod.trim() {
        "" => host_name(),
        pod => pod.to_owned(),
    }
}

/// The host's name up to its first dot, as peers see it too.
fn host_name() -> String {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    match name.split('.').next() {
        None | Some("") => "unknown".to_owned(),
        Some(host) => host.to_owned(),
    }
}

/// A connection's name: the parts joined by `:`, with what a name may not hold replaced by `-`,
/// `unknown` for empty parts, cut to 256 bytes.
pub(crate) fn client_name(parts: &[&str]) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    let mut name = String::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            name.push(':');
        }
        let part = if part.is_empty() { "unknown" } else { part };
        name.extend(part.chars().map(|c| if allowed(c) { c } else { '-' }));
    }
    name.truncate(CLIENT_NAME_MAX); // ASCII by now
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn env(set: &'static [(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        move |name| {
            let value = set.iter().find(|(n, _)| *n == name)?.1;
            Some(value.to_owned())
        }
    }

    #[test]
    fn names_have_the_ids_other_implementations_derive() {
        for (name, id) in [
            ("svc-0", "1b3a45ca-59c5-d080-8e1c-02429c2efc50"),
            ("svc-1", "11c7db43-78ec-ec85-be43-a32aea5fd96e"),
            (
                "orders-7d4f8b-x2k9p",
                "646ff529-336a-388a-8f7e-9cef4079e1cb",
            ),
            ("HOST#0", "a7470c17-6845-0187-a8dc-9130b43dcb70"),
        ] {
            assert_eq!(InstanceId::derive(name).to_string(), id);
        }
        assert_eq!(
            InstanceId::ADMIN.to_string(),
            "6f72616e-6765-4164-6d69-6e5265736574"
        );
        assert_eq!(
            InstanceId::ZERO.to_string(),
            "00000000-0000-0000-0000-000000000000"
        );
    }

    #[test]
    fn random_ids_differ_and_say_that_they_are_random() {
        let ids: Vec<_> = (0..100).map(|_| InstanceId::random()).collect();
        for (i, id) in ids.iter().enumerate() {
            let text = id.to_string();
            assert_eq!(text.as_bytes()[14], b'4', "{text}");
            assert!(b"89ab".contains(&text.as_bytes()[19]), "{text}");
            assert!(!ids[..i].contains(id));
        }
    }

    #[test]
    fn only_the_hyphenated_form_is_read() {
        let text = "1b3a45ca-59c5-d080-8e1c-02429c2efc50";
        let id = InstanceId::derive("svc-0");
        assert_eq!(InstanceId::parse(text.as_bytes()), Some(id));
        assert_eq!(InstanceId::parse(text.to_uppercase().as_bytes()), Some(id));
        for bad in [
            "",
            "1b3a45ca59c5d0808e1c02429c2efc50",
            "{1b3a45ca-59c5-d080-8e1c-02429c2efc50}",
            "1b3a45ca-59c5-d080-8e1c-02429c2efc5",
            "1b3a45ca-59c5-d080-8e1c-02429c2efc500",
            "1b3a45ca-59c5-d080-8e1c-02429c2efc5g",
            "1b3a45ca-59c5-d080-8e1c_02429c2efc50",
            "1b3a45c-a59c5-d080-8e1c-02429c2efc50",
            "+b3a45ca-59c5-d080-8e1c-02429c2efc50",
        ] {
            assert_eq!(InstanceId::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_pod_name_goes_before_the_index_and_both_before_chance() {
        let by_pod = env(&[("POD_NAME", "svc-0"), ("STREAMS_INSTANCE_INDEX", "7")]);
        assert_eq!(InstanceId::from_env(by_pod), InstanceId::derive("svc-0"));

        let by_index = env(&[("POD_NAME", ""), ("STREAMS_INSTANCE_INDEX", "7")]);
        let expected = InstanceId::derive(&format!("{}#7", host_name()));
        assert_eq!(InstanceId::from_env(by_index), expected);

        let by_chance = InstanceId::from_env(env(&[]));
        assert_eq!(InstanceId::from_env(env(&[])), by_chance);
        assert_ne!(by_chance, InstanceId::ZERO);
    }

    #[test]
    fn a_pod_always_has_a_name() {
        assert_eq!(pod_name(env(&[("POD_NAME", " svc-0\n")])), "svc-0");
        let host = pod_name(env(&[]));
        assert_eq!(pod_name(env(&[("POD_NAME", "  ")])), host);
        assert!(!host.is_empty() && !host.contains('.'), "{host}");
    }

    #[test]
    fn client_names_hold_only_what_the_server_takes() {
        for (parts, name) in [
            (&["streams", "shop", "svc-0"] as &[_], "streams:shop:svc-0"),
            (
                &["streams-rd", "my shop", "käufe\n", "i0", ""],
                "streams-rd:my-shop:k-ufe-:i0:unknown",
            ),
            (&["a:b", "A._-9"], "a:b:A._-9"),
        ] {
            assert_eq!(client_name(parts), name);
        }
        let long = client_name(&["streams", &"ü".repeat(300)]);
        assert_eq!(long, format!("streams:{}", "-".repeat(248)));
    }

    proptest! {
        #[test]
        fn ids_round_trip_and_compare_like_their_text(a: [u8; 16], b: [u8; 16]) {
            let (a, b) = (InstanceId(a), InstanceId(b));
            prop_assert_eq!(InstanceId::parse(a.to_string().as_bytes()), Some(a));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
        }

        #[test]
        fn no_text_makes_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 30..40)) {
            if let Some(id) = InstanceId::parse(&bytes) {
                prop_assert_eq!(id.to_string().into_bytes(), bytes.to_ascii_lowercase());
            }
        }
    }
}
