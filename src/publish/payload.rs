//! Large bodies, kept apart: a script that writes the body to a key of its own and the entry that refers to
//! it, both or neither. How they look is told in the module `payload` of `wire`.

use std::time::Duration;

use crate::{
    clock,
    error::Error,
    net::{
        resp,
        script::{Form, Script},
    },
    wire::{Entry, REFERENCE, REFERENCE_MAX, Reference},
};

use super::{
    Encoder,
    encoder::fields,
    once::{Dedupe, ONCE},
};

/// Keys: the stream, the payload. Arguments: the milliseconds that the payload lives, the body, then what
/// follows the key in XADD. A stream that takes no message (it is of another type, its ids are used up) leaves
/// no payload behind. A server without memory refuses the script as it does an XADD.
pub(super) const APART: Script = Script {
    text: "#!lua
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[1])
local id = redis.pcall('XADD', KEYS[1], unpack(ARGV, 3))
if type(id) == 'table' then redis.pcall('DEL', KEYS[2]) end
return id",
    sha1: "2a49604f374914c80d83cc90e5b1b6cce78f3081",
    commands: "+eval +evalsha +set +del +xadd",
};

/// How many arguments a reference adds to those of an entry.
const REFERENCE_ARGS: usize = 2;

/// Which bodies are kept apart, and how.
#[derive(Debug)]
pub(super) struct Payloads {
    /// Bodies of more bytes are.
    most_inline: usize,
    ttl_ms: u64,
    /// What the keys begin with, by partition; empty when none are kept.
    prefixes: Vec<Box<[u8]>>,
}

impl Payloads {
    /// `prefixes` is asked only when there can be any.
    pub(super) fn new(
        most_inline: usize,
        ttl: Duration,
        prefixes: impl FnOnce() -> Vec<Box<[u8]>>,
    ) -> Self {
        Self {
            most_inline,
            ttl_ms: clock::ceil_ms(ttl),
            prefixes: if most_inline == usize::MAX {
                Vec::new()
            } else {
                prefixes()
            },
        }
    }

    /// Whether a body of so many bytes is kept apart.
    #[inline]
    pub(super) fn takes(&self, bytes: usize) -> bool {
        bytes > self.most_inline
    }

    /// How many milliseconds they live.
    pub(super) fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    /// Whether any body is.
    fn takes_any(&self) -> bool {
        !self.prefixes.is_empty()
    }
}

impl Encoder {
    /// Adds the command that appends an entry: its XADD, or the script where its body is to be kept apart.
    #[inline(never)]
    pub(super) fn append(&self, out: &mut Vec<u8>, entry: &Entry<'_>, partition: u32) {
        if self.payloads().takes(entry.body.len()) {
            self.append_apart(out, entry, partition);
        } else {
            self.xadd(out, entry, partition);
        }
    }

    #[cold]
    #[inline(never)]
    fn append_apart(&self, out: &mut Vec<u8>, entry: &Entry<'_>, partition: u32) {
        let apart = Apart::new(entry.body.len());
        self.begin_apart(out, &apart, self.args_after_key(entry), partition);
        resp::arg(out, entry.body);
        self.after_key_apart(out, entry, &apart);
    }

    /// As [`append`](Self::append) does for a body that is kept apart, of fields that are written already: the
    /// `body` as one argument, and what comes behind it, of which with the body there are so many `pairs`.
    #[cold]
    #[inline(never)]
    pub(super) fn append_written(
        &self,
        out: &mut Vec<u8>,
        len: usize,
        (body, rest): (&[u8], &[u8]),
        pairs: usize,
        partition: u32,
    ) {
        let apart = Apart::new(len);
        self.begin_apart(out, &apart, self.trim_args() + 2 * pairs, partition);
        out.extend_from_slice(body);
        out.extend_from_slice(self.trim());
        resp::pair(out, *b"b", b"");
        out.extend_from_slice(rest);
        apart.refer(out);
    }

    /// As [`append_apart`](Self::append_apart), unless that was done before.
    #[cold]
    #[inline(never)]
    pub(super) fn once_apart(
        &self,
        out: &mut Vec<u8>,
        entry: &Entry<'_>,
        dedupe: Dedupe<'_>,
        partition: u32,
        form: Form,
    ) {
        let apart = Apart::new(entry.body.len());
        let args = self.args_after_key(entry) + REFERENCE_ARGS;
        ONCE.begin(out, form, 3, 3 + args);
        self.once_keys(out, dedupe, partition);
        self.payload_key(out, &apart, partition);
        resp::arg_number(out, clock::ceil_ms(dedupe.ttl));
        resp::arg_number(out, self.payloads().ttl_ms);
        resp::arg(out, entry.body);
        self.after_key_apart(out, entry, &apart);
    }

    /// Adds how many arguments follow, and what follows the key in the XADD of an entry: for a script that runs
    /// several. A body that is to be kept apart goes to `apart`. Returns how many arguments follow.
    pub(super) fn numbered(
        &self,
        out: &mut Vec<u8>,
        apart: &mut KeptApart,
        entry: &Entry<'_>,
        partition: u32,
    ) -> usize {
        let mut n = self.args_after_key(entry);
        if self.payloads().takes(entry.body.len()) {
            n += REFERENCE_ARGS;
            resp::arg_number(out, n as u64);
            let body = Apart::new(entry.body.len());
            self.after_key_apart(out, entry, &body);
            self.payload_key(&mut apart.keys, &body, partition);
            resp::arg(&mut apart.bodies, entry.body);
            apart.n += 1;
        } else {
            resp::arg_number(out, n as u64);
            self.after_key(out, entry);
        }
        n
    }

    /// The script, always spelled out: beside such a body it is nothing, and whatever the server forgot in the
    /// middle of a pipeline, order is kept.
    fn begin_apart(&self, out: &mut Vec<u8>, apart: &Apart, args: usize, partition: u32) {
        APART.begin(out, Form::Whole, 2, 2 + args + REFERENCE_ARGS);
        resp::arg(out, self.stream(partition));
        self.payload_key(out, apart, partition);
        resp::arg_number(out, self.payloads().ttl_ms);
    }

    /// What follows the key in the XADD of an entry whose body is kept apart.
    #[cold]
    #[inline(never)]
    fn after_key_apart(&self, out: &mut Vec<u8>, entry: &Entry<'_>, apart: &Apart) {
        out.extend_from_slice(self.trim());
        let without = Entry {
            body: b"",
            ..*entry
        };
        fields(out, &without);
        apart.refer(out);
    }

    fn payload_key(&self, out: &mut Vec<u8>, apart: &Apart, partition: u32) {
        let prefix = &self.payloads().prefixes[partition as usize];
        resp::arg_joined(out, prefix, apart.reference.id());
    }

    /// Says what to grant where a message was refused whose body may be kept apart.
    #[cold]
    #[inline(never)]
    pub(super) fn refused(&self, e: Error) -> Error {
        if self.payloads().takes_any() {
            APART.saying_what_to_grant(e, &[&self.payload_family()])
        } else {
            e
        }
    }
}

/// The bodies of several entries that are to be kept apart.
#[derive(Default)]
pub(super) struct KeptApart {
    /// How many there are.
    pub(super) n: usize,
    /// Their keys, as arguments.
    pub(super) keys: Vec<u8>,
    /// The bodies, as arguments.
    pub(super) bodies: Vec<u8>,
}

/// A body that is kept apart, wherever it is written.
struct Apart {
    reference: Reference,
}

impl Apart {
    fn new(len: usize) -> Self {
        Self {
            reference: Reference::mint(len),
        }
    }

    /// Adds the field that refers to it.
    fn refer(&self, out: &mut Vec<u8>) {
        resp::pair(
            out,
            *REFERENCE,
            self.reference.encode(&mut [0; REFERENCE_MAX]),
        );
    }
}
