//! Scripts of this crate, and how they are named to a server.

use redis::Cmd;

use super::resp;
use crate::{
    Result,
    error::{Error, ServerClass},
};

/// A script, which the server runs as a whole or not at all.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    /// What the server knows it by once it has run it.
    pub(crate) sha1: &'static str,
    /// The rights it needs, as ACL rules.
    pub(crate) commands: &'static str,
}

/// How a script is named to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// As a whole: the server runs it and knows it from then on.
    Whole,
    /// By its hash. The server answers `NOSCRIPT`, and has done nothing, if it does not know it.
    Known,
}

/// Runs a script by its hash, and as a whole where the server does not know it: that had no effect.
pub(crate) fn by_hash_first<T>(mut run: impl FnMut(Form) -> Result<T>) -> Result<T> {
    match run(Form::Known) {
        Err(e) if e.server_code() == Some("NOSCRIPT") => run(Form::Whole),
        done => done,
    }
}

impl Script {
    /// Begins the command that runs it. So many keys follow, then so many arguments.
    pub(crate) fn begin(&self, out: &mut Vec<u8>, form: Form, keys: usize, args: usize) {
        let (name, script) = self.named(form);
        resp::command(out, 3 + keys + args);
        resp::arg(out, name.as_bytes());
        resp::arg(out, script.as_bytes());
        resp::arg_number(out, keys as u64);
    }

    /// The command that runs it on one key, for where a few allocations do not matter.
    pub(crate) fn on_key(&self, form: Form, key: &[u8], args: &[&[u8]]) -> Cmd {
        let (name, script) = self.named(form);
        let mut cmd = redis::cmd(name);
        cmd.arg(script).arg(1).arg(key).arg(args);
        cmd
    }

    pub(crate) fn named(&self, form: Form) -> (&'static str, &'static str) {
        match form {
            Form::Whole => ("EVAL", self.text),
            Form::Known => ("EVALSHA", self.sha1),
        }
    }

    /// Says what to grant where it was refused; `keys` are the prefixes of its keys besides streams.
    #[cold]
    pub(crate) fn saying_what_to_grant(&self, e: Error, keys: &[&str]) -> Error {
        if e.server_class() != Some(ServerClass::NoPermission) {
            return e;
        }
        let keys: Vec<_> = keys.iter().map(|prefix| format!("~{prefix}*")).collect();
        let what = format!(
            "{}; this is a script, which needs ACL SETUSER <user> {} {}",
            e.message(),
            self.commands,
            keys.join(" ")
        );
        e.saying(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_script_is_named_by_its_hash_and_then_spelled_out_once() {
        let noscript = || Error::server("call", b"NOSCRIPT No matching script.");
        let mut forms = Vec::new();
        let done = by_hash_first(|form| {
            forms.push(form);
            match form {
                Form::Known => Err(noscript()),
                Form::Whole => Ok(7),
            }
        });
        assert_eq!(
            (done.unwrap(), &*forms),
            (7, &[Form::Known, Form::Whole][..])
        );
        for other in ["OOM no memory", "ERR NOSCRIPT"] {
            let mut calls = 0;
            let refused: Result<()> = by_hash_first(|_| {
                calls += 1;
                Err(Error::server("call", other.as_bytes()))
            });
            assert_eq!((refused.unwrap_err().kind(), calls), (ErrorKind::Server, 1));
        }
        let stubborn: Result<()> = by_hash_first(|_| Err(noscript()));
        assert!(stubborn.unwrap_err().is_retryable());
    }

    #[test]
    fn a_script_begins_with_its_name_and_its_keys() {
        let script = Script {
            text: "return 1",
            sha1: "e0e1f9",
            commands: "+eval",
        };
        for (form, wire) in [
            (
                Form::Known,
                "*6\r\n$7\r\nEVALSHA\r\n$6\r\ne0e1f9\r\n$1\r\n2\r\n",
            ),
            (
                Form::Whole,
                "*6\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n2\r\n",
            ),
        ] {
            let mut out = Vec::new();
            script.begin(&mut out, form, 2, 1);
            assert_eq!(
                out.escape_ascii().to_string(),
                wire.as_bytes().escape_ascii().to_string()
            );
        }
    }
}
