//! Bytes of messages as JSON has them.

use std::fmt::Write;

use serde_json::Value;

/// Bytes that are text most of the time.
#[derive(Clone, Copy)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

/// Adds bytes to an object: as text under this name, or where they are no UTF-8 in hexadecimal digits under the
/// name with `_hex` behind it. What there is not is null.
pub(crate) fn insert(object: &mut Value, name: &str, bytes: Option<Bytes<'_>>) {
    match bytes.map(|Bytes(b)| (str::from_utf8(b), b)) {
        None => object[name] = Value::Null,
        Some((Ok(text), _)) => object[name] = text.into(),
        Some((Err(_), bytes)) => object[format!("{name}_hex")] = hex(bytes).into(),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        let _ = write!(out, "{b:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_told_in_digits() {
        let mut object = serde_json::json!({});
        insert(&mut object, "key", Some(Bytes("grün".as_bytes())));
        insert(&mut object, "body", Some(Bytes(&[0, 0xff])));
        insert(&mut object, "type", None);
        assert_eq!(
            object,
            serde_json::json!({ "key": "grün", "body_hex": "00ff", "type": null })
        );
    }
}
