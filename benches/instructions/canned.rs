//! A server that has its answers in memory: reads are always answered with a full batch of the same
//! messages, under ids that go on from those asked for, and appends with ids that count up. Everything
//! else is passed on to a real server.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread,
};

use streamlane::testing::{Client, Reply};

use crate::{
    Outcome,
    paths::{KEY, TYPE, body_of},
};

/// Serves until this process is killed.
pub(crate) fn serve(socket: &str, upstream: &str) -> Outcome<()> {
    for connection in UnixListener::bind(socket)?.incoming() {
        let (connection, upstream) = (connection?, upstream.to_owned());
        // a client that hangs up ends its thread
        thread::spawn(move || answer(connection, &upstream));
    }
    Ok(())
}

fn answer(mut connection: UnixStream, upstream: &str) -> Outcome<()> {
    let mut upstream = Client::connect_unix(upstream)?;
    let (mut asked, mut filled, mut out) = (vec![0; 1 << 20], 0, Vec::new());
    let mut appended = 0;
    loop {
        match connection.read(&mut asked[filled..])? {
            0 => return Ok(()),
            n => filled += n,
        }
        let mut at = 0;
        while let Some((words, end)) = command(&asked[..filled], at) {
            match words[0] {
                b"XREAD" => batch(&words, &mut out)?,
                b"XADD" => {
                    appended += 1;
                    write!(out, "$20\r\n1700000000000-{appended:06}\r\n")?;
                }
                _ => match upstream.command(&words) {
                    Ok(reply) => out.extend(reply.to_bytes()),
                    Err(refusal) => out.extend(Reply::Error(refusal.to_string()).to_bytes()),
                },
            }
            at = end;
        }
        asked.copy_within(at..filled, 0);
        filled -= at;
        connection.write_all(&out)?;
        out.clear();
    }
}

/// The words of the command at `at` and where it ends, if it is there whole.
fn command(bytes: &[u8], at: usize) -> Option<(Vec<&[u8]>, usize)> {
    let (n, mut at) = number(bytes, at)?;
    let mut words = Vec::with_capacity(n);
    for _ in 0..n {
        let (len, text) = number(bytes, at)?;
        words.push(bytes.get(text..text + len)?);
        at = text + len + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

/// The number behind the mark at `at`, and where its line ends.
fn number(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let rest = bytes.get(at + 1..)?;
    let len = rest.windows(2).position(|w| w == b"\r\n")?;
    let digits = std::str::from_utf8(&rest[..len]).ok()?;
    Some((digits.parse().ok()?, at + 1 + len + 2))
}

/// As many entries as were asked for, after the id asked for.
fn batch(words: &[&[u8]], out: &mut Vec<u8>) -> Outcome<()> {
    let after = |word: &[u8]| words.iter().position(|w| *w == word).map(|i| words[i + 1]);
    let count = after(b"COUNT").ok_or("no COUNT")?;
    let count: u64 = std::str::from_utf8(count)?.parse()?;
    let (key, cursor) = (words[words.len() - 2], words[words.len() - 1]);
    let cursor = std::str::from_utf8(cursor)?;
    let (_, last) = cursor.split_once('-').ok_or("no id")?;
    let last: u64 = last.parse()?;
    let body = body_of(key);
    write!(out, "*1\r\n*2\r\n${}\r\n", key.len())?;
    out.extend_from_slice(key);
    write!(out, "\r\n*{count}\r\n")?;
    for n in last + 1..=last + count {
        // as long as the ids of today are
        let id = format!("1700000000000-{n}");
        write!(out, "*2\r\n${}\r\n{id}\r\n*6\r\n", id.len())?;
        for word in [b"b", body, b"t", TYPE, b"k", KEY] {
            write!(out, "${}\r\n", word.len())?;
            out.extend_from_slice(word);
            out.extend_from_slice(b"\r\n");
        }
    }
    Ok(())
}
