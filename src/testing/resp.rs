//! As much of the Redis protocol as tests need: replies as values, and a client that blocks.

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Write},
    net::SocketAddr,
    path::Path,
    time::Duration,
};

use socket2::{Domain, SockAddr, Socket, Type};

use super::failed;

/// What a server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Nothing: a nil of any spelling.
    Nil,
    /// A number.
    Int(i64),
    /// A short word such as `OK`; the doubles and booleans of RESP3 arrive as one, too.
    Status(String),
    /// Bytes.
    Bulk(Vec<u8>),
    /// A list. Maps and sets of RESP3 arrive as flat lists.
    Array(Vec<Reply>),
    /// An error, code first.
    Error(String),
}

impl Reply {
    /// Bytes, from text or bytes.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// The reply as text; empty for a nil or a list. Bytes that are no UTF-8 are replaced.
    pub fn text(&self) -> String {
        match self {
            Self::Nil | Self::Array(_) => String::new(),
            Self::Int(n) => n.to_string(),
            Self::Status(s) | Self::Error(s) => s.clone(),
            Self::Bulk(b) => String::from_utf8_lossy(b).into_owned(),
        }
    }

    /// The number, also when it was sent as text.
    pub fn int(&self) -> Option<i64> {
        self.text().parse().ok()
    }

    /// The parts of a list; none for anything else.
    pub fn items(&self) -> &[Reply] {
        match self {
            Self::Array(items) => items,
            _ => &[],
        }
    }

    /// The reply as a server sends it, in RESP2.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let line = |out: &mut Vec<u8>, mark: u8, text: &str| {
            out.push(mark);
            out.extend_from_slice(text.as_bytes());
            out.extend_from_slice(b"\r\n");
        };
        match self {
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Int(n) => line(out, b':', &n.to_string()),
            Self::Status(s) => line(out, b'+', s),
            Self::Error(s) => line(out, b'-', s),
            Self::Bulk(b) => {
                line(out, b'$', &b.len().to_string());
                out.extend_from_slice(b);
                out.extend_from_slice(b"\r\n");
            }
            Self::Array(items) => {
                line(out, b'*', &items.len().to_string());
                for item in items {
                    item.encode(out);
                }
            }
        }
    }

    /// Reads one whole reply; an end of stream before it is complete is an error.
    pub(super) fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = line.strip_suffix("\r\n").ok_or(ErrorKind::UnexpectedEof)?;
        let (mark, text) = line.split_at_checked(1).unwrap_or_default();
        let number = || {
            text.parse::<i64>()
                .map_err(|_| failed(format!("not a reply: {line:?}")))
        };
        Ok(match mark {
            "+" | "," | "#" | "(" => Self::Status(text.to_owned()),
            "-" => Self::Error(text.to_owned()),
            ":" => Self::Int(number()?),
            "_" => Self::Nil,
            "$" | "=" => match usize::try_from(number()?) {
                Err(_) => Self::Nil,
                Ok(n) => {
                    let mut bytes = vec![0; n + 2];
                    from.read_exact(&mut bytes)?;
                    bytes.truncate(n);
                    Self::Bulk(bytes)
                }
            },
            "*" | "~" | ">" | "%" => match usize::try_from(number()?) {
                Err(_) => Self::Nil,
                Ok(n) => {
                    let n = if mark == "%" { n * 2 } else { n };
                    Self::Array(
                        (0..n)
                            .map(|_| Self::read(from))
                            .collect::<io::Result<_>>()?,
                    )
                }
            },
            _ => return Err(failed(format!("not a reply: {line:?}"))),
        })
    }
}

/// A plain connection to a server: one command, one reply. Not pooled, never reconnected.
#[derive(Debug)]
pub struct Client(BufReader<Socket>);

impl Client {
    /// Connects over TCP.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(to: SocketAddr) -> io::Result<Self> {
        Self::dial(Domain::for_address(to), &to.into())
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect_unix(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::dial(Domain::UNIX, &SockAddr::unix(path)?)
    }

    fn dial(domain: Domain, to: &SockAddr) -> io::Result<Self> {
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.connect(to)?;
        if domain != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
        let mut client = Self(BufReader::new(socket));
        client.set_patience(Duration::from_secs(10))?;
        Ok(client)
    }

    /// How long each read and write may wait; 10 s at first. Zero is refused.
    ///
    /// # Errors
    /// When the system refuses the duration.
    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(patience))?;
        self.0.get_ref().set_write_timeout(Some(patience))
    }

    /// Sends a command and waits for its reply. Use the client no further after an I/O error.
    ///
    /// # Errors
    /// When the connection fails, the patience runs out (`WouldBlock`), or the reply is an error, whose
    /// text then is the message. Errors inside a list stay where they are.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(args)?;
        match self.receive()? {
            Reply::Error(text) => Err(failed(text)),
            reply => Ok(reply),
        }
    }

    /// Sends a command and leaves its reply for [`receive`](Self::receive).
    ///
    /// # Errors
    /// When the connection fails or takes no more bytes in time.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let args = args.iter().map(Reply::bulk).collect();
        self.send_bytes(&Reply::Array(args).to_bytes())
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When the connection fails or takes no more bytes in time.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// Waits for the next reply, an error reply included.
    ///
    /// # Errors
    /// When the connection fails, ends or stays silent for too long.
    pub fn receive(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.0)
    }

    /// Reads the next byte, or nothing at the end of the stream.
    #[cfg(test)]
    pub(super) fn byte(&mut self) -> io::Result<Option<u8>> {
        let byte = self.0.fill_buf()?.first().copied();
        self.0.consume(byte.map_or(0, |_| 1));
        Ok(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Reply> {
        Reply::read(&mut &*bytes)
    }

    #[test]
    fn replies_survive_a_round_trip_and_cut_ones_are_refused() {
        let reply = Reply::Array(vec![
            Reply::Nil,
            Reply::Int(-7),
            Reply::Status("OK".into()),
            Reply::bulk(b"\0\r\n\xff"),
            Reply::Array(vec![]),
            Reply::Error("ERR no".into()),
        ]);
        let bytes = reply.to_bytes();
        assert_eq!(read(&bytes).unwrap(), reply);
        for n in 0..bytes.len() {
            assert!(read(&bytes[..n]).is_err(), "{n} bytes");
        }
    }

    #[test]
    fn newer_shapes_are_read_too() {
        for (bytes, want) in [
            ("_\r\n", Reply::Nil),
            ("*-1\r\n", Reply::Nil),
            ("#t\r\n", Reply::Status("t".into())),
            (
                "%1\r\n+a\r\n:1\r\n",
                Reply::Array(vec![Reply::Status("a".into()), Reply::Int(1)]),
            ),
        ] {
            assert_eq!(read(bytes.as_bytes()).unwrap(), want);
        }
        assert!(read(b"hello\r\n").is_err());
        assert!(read(b"\r\n").is_err());
        assert!(read(b":x\r\n").is_err());
    }
}
