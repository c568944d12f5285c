//! The bare socket: bytes prepared beforehand, and a scanner that looks at lengths and nothing else.
//! It knows only the answers its own questions can get, and shares no code with the library.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};

use crate::{KEPT, KEY, TYPE};

trait Duplex: Read + Write + AsFd + Send {}
impl<T: Read + Write + AsFd + Send> Duplex for T {}

/// A connection and its receive buffer.
pub(crate) struct Wire {
    socket: Box<dyn Duplex>,
    buffer: Vec<u8>,
    filled: usize,
}

impl Wire {
    pub(crate) fn tcp(port: u16) -> io::Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        Ok(Self::of(socket))
    }

    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        Ok(Self::of(UnixStream::connect(path)?))
    }

    fn of(socket: impl Duplex + 'static) -> Self {
        Self {
            socket: Box::new(socket),
            buffer: vec![0; 512 * 1024],
            filled: 0,
        }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.filled = 0;
        self.socket.write_all(bytes)
    }

    fn receive(&mut self) -> io::Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(2 * self.filled, 0);
        }
        match self.socket.read(&mut self.buffer[self.filled..])? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            n => {
                self.filled += n;
                Ok(())
            }
        }
    }

    /// How many line ends have arrived; waits for some only if asked to. What arrived is thrown away.
    pub(crate) fn line_ends(&mut self, flags: RecvFlags) -> io::Result<u64> {
        match recv(&self.socket, &mut self.buffer[..], flags) {
            Ok((_, 0)) => Err(ErrorKind::UnexpectedEof.into()),
            Ok((_, n)) => {
                let arrived = self.buffer[..n].iter();
                Ok(arrived.map(|b| u64::from(*b == b'\n')).sum())
            }
            Err(Errno::AGAIN) => Ok(0),
            Err(e) => Err(e.into()),
        }
    }

    /// Receives the ids that answer `n` XADDs.
    pub(crate) fn ids(&mut self, n: usize) -> io::Result<()> {
        let (mut at, mut left) = (0, n);
        loop {
            while left > 0
                && let Some(end) = string(&self.buffer[..self.filled], at)
            {
                if self.buffer[at] != b'$' {
                    return Err(refusal(&self.buffer[..self.filled]));
                }
                (at, left) = (end, left - 1);
            }
            if left == 0 {
                return Ok(());
            }
            self.receive()?;
        }
    }

    /// Receives the answer to an XREAD of one stream, and calls `each` with the body of each entry.
    /// Returns how many entries there were; the last id is then in `cursor`.
    pub(crate) fn entries(
        &mut self,
        cursor: &mut Vec<u8>,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        self.scan(cursor, |bytes, (at, len)| each(&bytes[at..][..len]))
    }

    /// As [`entries`](Self::entries), for the answer to an XREADGROUP behind that to an XACK, if there is one;
    /// `ids` gets the ids, as arguments.
    pub(crate) fn given(
        &mut self,
        acknowledged: bool,
        ids: &mut Vec<u8>,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<usize> {
        ids.clear();
        let mut at = 0;
        while acknowledged && at == 0 {
            self.receive()?;
            at = header(&self.buffer[..self.filled], 0).map_or(0, |(_, end)| end);
        }
        self.scan_from(at, &mut Vec::new(), |bytes, (id, len), (body, size)| {
            // never fails: it is a Vec
            let _ = write!(ids, "${len}\r\n");
            ids.extend_from_slice(&bytes[id..][..len]);
            ids.extend_from_slice(b"\r\n");
            each(&bytes[body..][..size]);
        })
    }

    /// As [`entries`](Self::entries), and only notes where the bodies lie: see [`body`](Self::body).
    pub(crate) fn index(
        &mut self,
        cursor: &mut Vec<u8>,
        places: &mut Vec<(usize, usize)>,
    ) -> io::Result<usize> {
        places.clear();
        self.scan(cursor, |_, place| places.push(place))
    }

    /// A body that was found, until the next answer is received.
    pub(crate) fn body(&mut self, (at, len): (usize, usize)) -> &mut [u8] {
        &mut self.buffer[at..][..len]
    }

    fn scan(
        &mut self,
        cursor: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], (usize, usize)),
    ) -> io::Result<usize> {
        self.scan_from(0, cursor, |bytes, _, body| each(bytes, body))
    }

    /// Scans the answer that begins at `from`, and calls `each` with where ids and bodies lie.
    #[inline]
    fn scan_from(
        &mut self,
        from: usize,
        cursor: &mut Vec<u8>,
        mut each: impl FnMut(&[u8], (usize, usize), (usize, usize)),
    ) -> io::Result<usize> {
        let (mut at, mut left, mut n) = (0, None, 0);
        let mut id = 0..0;
        loop {
            let bytes = &self.buffer[from..self.filled];
            if left.is_none() {
                match bytes {
                    [b'*', b'-', ..] => return Ok(0),
                    [b'-', ..] => return Err(refusal(bytes)),
                    _ => {}
                }
                if let Some((end, count)) = first_entry(bytes) {
                    (at, left, n) = (end, Some(count), count);
                }
            }
            if let Some(left) = &mut left {
                while *left > 0
                    && let Some(e) = entry(bytes, at)
                {
                    each(bytes, e.id, e.body);
                    id = e.id.0..e.id.0 + e.id.1;
                    (at, *left) = (e.end, *left - 1);
                }
                if *left == 0 {
                    cursor.clear();
                    cursor.extend_from_slice(&bytes[id]);
                    return Ok(n);
                }
            }
            self.receive()?;
        }
    }
}

fn refusal(bytes: &[u8]) -> io::Error {
    io::Error::other(format!("the server says {}", bytes.escape_ascii()))
}

/// A number between the type mark at `at` and the line end, and where the line ends.
#[inline]
fn header(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let (mut n, mut i) = (0, at + 1);
    loop {
        match *bytes.get(i)? {
            b'\r' => return (i + 2 <= bytes.len()).then_some((n, i + 2)),
            digit => n = n * 10 + usize::from(digit & 15),
        }
        i += 1;
    }
}

/// Where the string at `at` ends.
#[inline]
fn string(bytes: &[u8], at: usize) -> Option<usize> {
    let (len, text) = header(bytes, at)?;
    let end = text + len + 2;
    (end <= bytes.len()).then_some(end)
}

/// Where the entries of the one stream begin, and how many there are.
fn first_entry(bytes: &[u8]) -> Option<(usize, usize)> {
    let (_, streams) = header(bytes, 0)?;
    let (_, pair) = header(bytes, streams)?;
    let (n, entries) = header(bytes, string(bytes, pair)?)?;
    Some((entries, n))
}

/// Places (offset, length) in an entry, and where it ends.
struct Entry {
    id: (usize, usize),
    body: (usize, usize),
    end: usize,
}

#[inline]
fn entry(bytes: &[u8], at: usize) -> Option<Entry> {
    let (_, at) = header(bytes, at)?;
    let (len, text) = header(bytes, at)?;
    let id = (text, len);
    let (fields, mut at) = header(bytes, text + len + 2)?;
    let mut body = (at, 0);
    for _ in 0..fields / 2 {
        let (name_len, name) = header(bytes, at)?;
        let (len, value) = header(bytes, name + name_len + 2)?;
        if *bytes.get(name)? == b'b' {
            body = (value, len);
        }
        at = value + len + 2;
    }
    (at <= bytes.len()).then_some(Entry { id, body, end: at })
}

/// A command as it goes over the wire.
pub(crate) fn command(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// The stream of a topic that has one partition.
pub(crate) fn stream(topic: &str) -> String {
    partition(topic, 0)
}

/// The stream of one of a topic's partitions.
pub(crate) fn partition(topic: &str, n: u32) -> String {
    format!("re:s:{{{topic}}}:{n}")
}

/// An XADD as a publisher sends it, trimming included.
pub(crate) fn xadd(topic: &str, body: &[u8]) -> Vec<u8> {
    let (key, kept) = (stream(topic), KEPT.to_string());
    let head: [&[u8]; 6] = [
        b"XADD",
        key.as_bytes(),
        b"MAXLEN",
        b"~",
        kept.as_bytes(),
        b"*",
    ];
    command(&[&head[..], &fields(body)].concat())
}

/// Names and values of an entry.
pub(crate) fn fields(body: &[u8]) -> [&[u8]; 6] {
    [b"b", body, b"t", TYPE, b"k", KEY]
}

/// What an XREAD begins with; the cursor is all that is missing.
pub(crate) struct Request {
    bytes: Vec<u8>,
    head: usize,
}

impl Request {
    /// Reads a stream, at most so many entries at a time.
    pub(crate) fn new(key: &str, count: u32) -> Self {
        let count = count.to_string();
        let args: [&[u8]; 8] = [
            b"XREAD",
            b"BLOCK",
            b"1000",
            b"COUNT",
            count.as_bytes(),
            b"STREAMS",
            key.as_bytes(),
            b"",
        ];
        let mut bytes = command(&args);
        bytes.truncate(bytes.len() - b"$0\r\n\r\n".len());
        Self {
            head: bytes.len(),
            bytes,
        }
    }

    /// The whole of it.
    pub(crate) fn after(&mut self, cursor: &[u8]) -> &[u8] {
        self.bytes.truncate(self.head);
        // never fails: it is a Vec
        let _ = write!(self.bytes, "${}\r\n", cursor.len());
        self.bytes.extend_from_slice(cursor);
        self.bytes.extend_from_slice(b"\r\n");
        &self.bytes
    }
}
