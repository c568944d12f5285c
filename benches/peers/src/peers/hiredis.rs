//! hiredis, through its C functions: commands without format strings, which is its fastest way.

use std::{
    ffi::{CString, c_char, c_int, c_longlong, c_void},
    ptr::{self, NonNull},
    slice,
};

use super::{Peer, items};
use crate::{
    KEPT, Outcome,
    meter::Meter,
    site::{Address, Site},
};

/// `redisReply`, of hiredis.h.
#[repr(C)]
struct Reply {
    kind: c_int,
    _integer: c_longlong,
    #[cfg(hiredis_1)]
    _double: f64,
    len: usize,
    text: *const c_char,
    #[cfg(hiredis_1)]
    _verbatim: [c_char; 4],
    elements: usize,
    element: *const NonNull<Reply>,
}

/// `REDIS_REPLY_ERROR`
const ERROR: c_int = 6;
/// `REDIS_OK`
const OK: c_int = 0;

unsafe extern "C" {
    fn redisConnect(ip: *const c_char, port: c_int) -> *mut c_void;
    fn redisConnectUnix(path: *const c_char) -> *mut c_void;
    fn redisAppendCommandArgv(
        context: *mut c_void,
        argc: c_int,
        argv: *const *const u8,
        lengths: *const usize,
    ) -> c_int;
    fn redisGetReply(context: *mut c_void, reply: *mut *mut Reply) -> c_int;
    fn freeReplyObject(reply: *mut Reply);
    fn redisFree(context: *mut c_void);
}

/// A connection: a valid `redisContext` that belongs to this value alone.
struct Context(NonNull<c_void>);

// SAFETY: hiredis keeps all it knows of a connection in its context and ties none of it to a thread.
unsafe impl Send for Context {}

impl Context {
    fn open(address: &Address) -> Outcome<Self> {
        let context = match address {
            Address::Tcp(port) => {
                // SAFETY: the text ends in a zero.
                unsafe { redisConnect(c"127.0.0.1".as_ptr(), (*port).into()) }
            }
            Address::Unix(path) => {
                let path = CString::new(path.as_os_str().as_encoded_bytes())?;
                // SAFETY: the text ends in a zero and is copied by the call.
                unsafe { redisConnectUnix(path.as_ptr()) }
            }
        };
        let mut context = Self(NonNull::new(context).ok_or("hiredis has no memory")?);
        // tells whether it is connected
        context.append([b"PING"])?;
        context.reply()?;
        Ok(context)
    }

    /// Makes a command part of what is sent before the next reply is awaited.
    fn append<const N: usize>(&mut self, args: [&[u8]; N]) -> Outcome<()> {
        let (pointers, lengths) = (args.map(<[u8]>::as_ptr), args.map(<[u8]>::len));
        let count = c_int::try_from(N)?;
        // SAFETY: the context is valid; both arrays have N elements, each pointer as many bytes as the
        // length says, and all of it is copied by the call.
        let done = unsafe {
            redisAppendCommandArgv(self.0.as_ptr(), count, pointers.as_ptr(), lengths.as_ptr())
        };
        if done == OK {
            Ok(())
        } else {
            Err("hiredis cannot queue a command".into())
        }
    }

    /// Sends what was queued, and waits for the reply to the oldest command without one.
    fn reply(&mut self) -> Outcome<Owned> {
        let mut reply = ptr::null_mut();
        // SAFETY: the context is valid, and there is room for the one pointer that is written.
        let done = unsafe { redisGetReply(self.0.as_ptr(), &raw mut reply) };
        match NonNull::new(reply).map(Owned) {
            Some(reply) if done == OK => {
                let top = reply.get();
                if top.kind == ERROR {
                    return Err(String::from_utf8_lossy(top.text()).into());
                }
                Ok(reply)
            }
            _ => Err("hiredis has lost its connection".into()),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is valid, and used no more.
        unsafe { redisFree(self.0.as_ptr()) }
    }
}

/// A reply with all that is in it, made by hiredis and complete.
struct Owned(NonNull<Reply>);

impl Owned {
    fn get(&self) -> &Reply {
        // SAFETY: hiredis made it, nothing changes it, and it is freed only when this is dropped.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: hiredis made it, and it is used no more.
        unsafe { freeReplyObject(self.0.as_ptr()) }
    }
}

impl Reply {
    /// What a string, a status or an error says; of others nothing.
    fn text(&self) -> &[u8] {
        if self.text.is_null() {
            return &[];
        }
        // SAFETY: where there is a text it has so many bytes, and lives as long as the reply.
        unsafe { slice::from_raw_parts(self.text.cast(), self.len) }
    }

    /// What is in an array; in others nothing.
    fn elements(&self) -> &[&Reply] {
        if self.elements == 0 {
            return &[];
        }
        // SAFETY: of a complete reply all elements are there, none is null, and they live as long as it
        // does. References look like pointers.
        unsafe { slice::from_raw_parts(self.element.cast(), self.elements) }
    }
}

struct Hiredis {
    context: Context,
    key: String,
    site: Site,
}

pub(super) fn open(site: &Site) -> Outcome<Box<dyn Peer>> {
    Ok(Box::new(Hiredis {
        context: Context::open(&site.address)?,
        key: site.stream(),
        site: site.clone(),
    }))
}

impl Hiredis {
    fn xadd(&mut self) -> Outcome<()> {
        let kept = KEPT.to_string();
        let [(b, body), (t, message_type), (k, key)] = items(self.site.body);
        self.context.append([
            b"XADD",
            self.key.as_bytes(),
            b"MAXLEN",
            b"~",
            kept.as_bytes(),
            b"*",
            b.as_bytes(),
            body,
            t.as_bytes(),
            message_type,
            k.as_bytes(),
            key,
        ])
    }
}

impl Peer for Hiredis {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        let mut lap = meter.lap(0);
        let count = self.site.batch.to_string();
        let mut cursor = b"0-0".to_vec();
        while lap.is_running() {
            self.context.append([
                b"XREAD",
                b"BLOCK",
                b"1000",
                b"COUNT",
                count.as_bytes(),
                b"STREAMS",
                self.key.as_bytes(),
                &cursor,
            ])?;
            let reply = self.context.reply()?;
            let [stream] = reply.get().elements() else {
                return Err("the stream ended early".into());
            };
            let [_key, entries] = stream.elements() else {
                return Err("this is no stream".into());
            };
            for entry in entries.elements() {
                let [id, fields] = entry.elements() else {
                    return Err("this is no entry".into());
                };
                for field in fields.elements().chunks_exact(2) {
                    if field[0].text() == b"b" {
                        lap.see(field[1].text());
                    }
                }
                cursor.clear();
                cursor.extend_from_slice(id.text());
            }
        }
        Ok(())
    }

    fn publish(&mut self) -> Outcome<()> {
        self.xadd()?;
        self.context.reply()?;
        Ok(())
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        for _ in 0..self.site.batch {
            self.xadd()?;
        }
        for _ in 0..self.site.batch {
            self.context.reply()?;
        }
        Ok(())
    }
}
