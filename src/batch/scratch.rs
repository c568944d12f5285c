//! Where bodies are decoded and made: decoding in place would destroy the bytes it reads, and a message handed
//! over again would then be another one; so the arena is never written to, and the copy costs about 1 %
//! of the parse.

use std::{fmt, mem};

use serde::{Deserialize, Serialize};
use simd_json::{Buffers, Deserializer, Tape, fill_tape_padded};

use crate::{Error, ErrorKind, Result};

/// JSON, as a [`Codec`](crate::Codec) for every value that implements [`Deserialize`]: strings are
/// borrowed, those with escapes included. It keeps its working memory from one document to the next; a
/// clone has its own.
pub struct Json {
    buffers: Buffers,
    tape: Tape<'static>,
}

impl Default for Json {
    fn default() -> Self {
        Self {
            buffers: Buffers::default(),
            tape: Tape(Vec::new()),
        }
    }
}

impl Clone for Json {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Json")
    }
}

/// Past so many places of a buffer, what is not used is given back.
const KEPT: usize = 1 << 18;

/// Whether a buffer of this capacity is much too large by now, of which so much was used last: one large
/// document must not be paid for ever after.
fn is_overgrown(capacity: usize, used: usize) -> bool {
    capacity > KEPT && capacity / 8 > used
}

impl Json {
    /// Decodes a copy of `json`, made in `text`. Allocates nothing once both have seen a document of that
    /// size.
    pub(crate) fn parse<'t, T: Deserialize<'t>>(
        &mut self,
        json: &[u8],
        text: &'t mut Vec<u8>,
    ) -> Result<T, simd_json::Error> {
        text.clear();
        text.extend_from_slice(json);
        // The parser may look past the end, at bytes it does not care about.
        text.resize(json.len() + simd_json::INPUT_PADDING, 0);
        let mut tape = mem::replace(&mut self.tape, Tape(Vec::new())).reset();
        let filled = fill_tape_padded(text, json.len(), &mut self.buffers, &mut tape);
        if let Err(e) = filled {
            self.tape = tape.reset();
            return Err(e);
        }
        let nodes = tape.0.len();
        let mut de = Deserializer::from_tape(tape);
        let value = T::deserialize(&mut de);
        self.tape = de.into_tape().reset();
        if is_overgrown(self.tape.0.capacity(), nodes) {
            *self = Self::default();
        }
        value
    }

    /// Appends a value as JSON to `out`. What was written of one that refuses is taken back.
    ///
    /// `serde_json` does the writing: for documents of numbers and short texts it takes two thirds of the
    /// time that `simd_json` does.
    pub(crate) fn write<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        serde_json::to_writer(&mut *out, value).map_err(|e| {
            out.truncate(start);
            let what = "the value refuses to be written as JSON";
            Error::new(ErrorKind::Argument, "encode", what).caused_by(e)
        })
    }
}

/// The buffers that JSON is decoded and made in, reused from one message to the next; see
/// [`Message::decode_json`](crate::Message::decode_json).
#[derive(Default)]
pub struct Scratch {
    json: Json,
    text: Vec<u8>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("capacity", &self.text.capacity())
            .finish_non_exhaustive()
    }
}

impl Scratch {
    /// Decodes a copy of `json`. Allocates nothing once it has seen a document of that size.
    pub(crate) fn decode<'s, T: Deserialize<'s>>(
        &'s mut self,
        json: &[u8],
    ) -> Result<T, simd_json::Error> {
        if is_overgrown(self.text.capacity(), json.len()) {
            self.text = Vec::new();
        }
        self.json.parse(json, &mut self.text)
    }

    /// Makes a body of JSON, for messages that are published with options:
    ///
    /// ```no_run
    /// # fn main() -> Result<(), streamlane::Error> {
    /// # let publisher = streamlane::Streams::connect("redis://127.0.0.1:6379")?.publisher("orders")?;
    /// let mut scratch = streamlane::Scratch::default();
    /// let body = scratch.encode_json(&["gift", "fragile"])?;
    /// publisher.message("OrderNoted", body).key("order-1").header("source", "web").publish()?;
    /// # Ok(()) }
    /// ```
    ///
    /// Allocates nothing once it has seen a document of that size.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] when the value refuses to be serialized.
    pub fn encode_json<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<&[u8]> {
        self.text.clear();
        Json::write(value, &mut self.text)?;
        Ok(&self.text)
    }
}

/// An emptied vector at another lifetime of its values. These are of one layout, so they are collected in
/// place, and its memory is kept.
pub(crate) fn emptied<A, B>(mut values: Vec<A>) -> Vec<B> {
    values.clear();
    let none = |_| unreachable!("it was emptied");
    values.into_iter().map(none).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, PartialEq, Debug)]
    struct Order<'a> {
        id: u64,
        customer: &'a str,
    }

    #[test]
    fn a_large_document_is_not_paid_for_ever_after() {
        let mut scratch = Scratch::default();
        let large = format!("[{}0]", "0,".repeat(4 * KEPT));
        let held = |s: &Scratch| [s.text.capacity(), s.json.tape.0.capacity()];
        for _ in 0..2 {
            let _: Vec<u8> = scratch.decode(large.as_bytes()).unwrap();
            assert!(
                held(&scratch).iter().all(|n| *n > 4 * KEPT),
                "it may come again"
            );
        }
        let half = format!("[{}0]", "0,".repeat(2 * KEPT));
        let _: Vec<u8> = scratch.decode(half.as_bytes()).unwrap();
        assert!(
            held(&scratch).iter().all(|n| *n > 4 * KEPT),
            "or one much like it"
        );
        let _: Vec<u8> = scratch.decode(b"[1]").unwrap();
        assert!(held(&scratch).iter().all(|n| *n <= KEPT));
    }

    #[test]
    fn strings_are_borrowed_even_with_escapes_and_the_input_is_left_alone() {
        let json = br#"{"id":1,"customer":"A\"B\u00e9"}"#.to_vec();
        let before = json.clone();
        let mut scratch = Scratch::default();
        for _ in 0..2 {
            let order: Order<'_> = scratch.decode(&json).unwrap();
            assert_eq!(
                order,
                Order {
                    id: 1,
                    customer: "A\"Bé"
                }
            );
        }
        assert_eq!(json, before);
    }

    #[test]
    fn a_bad_document_does_not_spoil_the_next() {
        let mut scratch = Scratch::default();
        for bad in [&b"{"[..], b"", b"\xff", br#"{"id":"x"}"#, b"[1,2"] {
            assert!(scratch.decode::<Order<'_>>(bad).is_err());
            let good = br#"{"id":2,"customer":""}"#;
            let order: Order<'_> = scratch.decode(good).unwrap();
            assert_eq!(order.id, 2);
        }
    }

    #[test]
    fn an_emptied_vector_keeps_its_memory() {
        let text = "x".to_owned();
        let mut values: Vec<&str> = Vec::with_capacity(100);
        values.push(&text);
        let (at, room) = (values.as_ptr(), values.capacity());
        let values: Vec<&'static str> = emptied(values);
        assert_eq!((values.as_ptr(), values.capacity()), (at, room));
        assert!(values.is_empty());
    }
}
