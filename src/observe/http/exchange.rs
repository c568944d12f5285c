//! One client: its request, the answer, and the end.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    time::Instant,
};

use super::Page;

/// A head that is longer is refused.
const LONGEST_HEAD: usize = 8 * 1024;
/// So much of what a client sends on after its head is looked away from; then it is cut off.
const MOST_IGNORED: usize = 64 * 1024;

/// A client and how far it is served.
pub(super) struct Exchange {
    pub(super) stream: TcpStream,
    /// When it is given up.
    pub(super) until: Instant,
    state: State,
}

enum State {
    /// The head comes in.
    Asked(Vec<u8>),
    /// The answer goes out, and so much of it has gone.
    Answered(Vec<u8>, usize),
    /// It has its answer, and so much was ignored since. A socket that is closed with something unread takes the
    /// answer back.
    Ending(usize),
}

/// What a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wants {
    ToRead,
    ToWrite,
}

impl Exchange {
    pub(super) fn new(stream: TcpStream, until: Instant) -> Self {
        Self {
            stream,
            until,
            state: State::Asked(Vec::new()),
        }
    }

    pub(super) fn wants(&self) -> Wants {
        match self.state {
            State::Asked(_) | State::Ending(_) => Wants::ToRead,
            State::Answered(..) => Wants::ToWrite,
        }
    }

    /// Goes on without waiting. False when there is nothing more to be done.
    pub(super) fn step(&mut self, page: impl Fn(&str) -> Option<Page>) -> bool {
        loop {
            match self.advance(&page) {
                Ok(true) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(false) | Err(_) => return false,
            }
        }
    }

    fn advance(&mut self, page: &impl Fn(&str) -> Option<Page>) -> io::Result<bool> {
        let mut buffer = [0; 1024];
        match &mut self.state {
            State::Asked(head) => {
                let n = self.stream.read(&mut buffer)?;
                head.extend_from_slice(&buffer[..n]);
                let Some(answer) = answer(head, page) else {
                    return Ok(n > 0);
                };
                self.state = State::Answered(answer, 0);
            }
            State::Answered(answer, gone) => {
                *gone += self.stream.write(&answer[*gone..])?;
                if *gone == answer.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = State::Ending(0);
                }
            }
            State::Ending(ignored) => {
                let n = self.stream.read(&mut buffer)?;
                *ignored += n;
                return Ok(n > 0 && *ignored < MOST_IGNORED);
            }
        }
        Ok(true)
    }
}

/// The whole answer to a request; `None` while its head is not complete.
pub(super) fn answer(head: &[u8], page: &impl Fn(&str) -> Option<Page>) -> Option<Vec<u8>> {
    let complete =
        head.windows(4).any(|w| w == b"\r\n\r\n") || head.windows(2).any(|w| w == b"\n\n");
    if !complete && head.len() <= LONGEST_HEAD {
        return None;
    }
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default().trim_end();
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let well_formed = version.is_some_and(|v| v.starts_with("HTTP/1.")) && words.next().is_none();
    let (status, content_type, body) = if !complete {
        ("431 Request Header Fields Too Large", TEXT, String::new())
    } else if !well_formed {
        (
            "400 Bad Request",
            TEXT,
            "this is no HTTP/1 request\n".into(),
        )
    } else if !matches!(method, Some("GET" | "HEAD")) {
        ("405 Method Not Allowed", TEXT, "only GET and HEAD\n".into())
    } else {
        let path = target.unwrap_or_default();
        match page(path.split('?').next().unwrap_or_default()) {
            None => ("404 Not Found", TEXT, "there is no such page\n".into()),
            Some(page) if page.is_fine => ("200 OK", page.content_type, page.body),
            Some(page) => ("503 Service Unavailable", page.content_type, page.body),
        }
    };
    let mut out = format!("HTTP/1.1 {status}\r\n");
    // never fails: it is a String
    let _ = write!(
        out,
        "Content-Type: {content_type}\r\nContent-Length: {}\r\n",
        body.len()
    );
    if status.starts_with("405") {
        out += "Allow: GET, HEAD\r\n";
    }
    out += "Cache-Control: no-store\r\nConnection: close\r\n\r\n";
    if method != Some("HEAD") {
        out += &body;
    }
    Some(out.into_bytes())
}

const TEXT: &str = "text/plain; charset=utf-8";
