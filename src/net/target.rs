//! Where to connect, and as whom: URLs and connection strings, read so that a mistake is told by the
//! part it is in. No text that was given is ever repeated in an error, for it may hold a password.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    net::Ipv6Addr,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use crate::error::{Error, Result};

const DEFAULT_PORT: u16 = 6379;
/// The longest path a Unix socket address has room for.
const MAX_PATH: usize = 107;
/// Options of shared connection strings that say nothing about where to connect or as whom.
const NO_MEANING_HERE: [&str; 19] = [
    "allowadmin",
    "asynctimeout",
    "channelprefix",
    "checkcertificaterevocation",
    "configchannel",
    "configcheckseconds",
    "connectretry",
    "highintegrity",
    "keepalive",
    "name",
    "protocol",
    "proxy",
    "resolvedns",
    "servicename",
    "setlib",
    "synctimeout",
    "tiebreaker",
    "version",
    "tunnel",
];
const ENCODING: &str = "in a URL these characters of a user name or password are written as percent \
    codes: % as %25, @ as %40, : as %3A, / as %2F, ? as %3F, # as %23";

/// Bytes that are never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Box<[u8]>);

impl Secret {
    pub(crate) fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes themselves: for the wire, not for any text.
    pub(crate) fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// What one address is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Tcp { host: Box<str>, port: u16 },
    Unix(PathBuf),
}

/// Where to connect, as whom, and to which database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    place: Place,
    endpoint: Box<str>,
    username: Option<Box<str>>,
    password: Option<Secret>,
    db: u32,
    wait_for_server: bool,
    connect_timeout: Option<Duration>,
}

impl Target {
    /// Reads `redis://`, `unix://` and `redis+unix://` URLs (also spelled `valkey`), and connection
    /// strings such as `host:6379,password=…,defaultDatabase=2`.
    ///
    /// # Errors
    ///
    /// `ErrorKind::Config`, naming the part that is wrong.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        match text.split_once("://") {
            // an option may hold a URL; only what comes first makes the whole a URL
            Some((scheme, rest)) if !scheme.contains([',', '=']) => Self::parse_url(scheme, rest),
            _ => Self::parse_options(text),
        }
    }

    fn of(place: Place) -> Self {
        let endpoint = match &place {
            Place::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp { host, port } => format!("{host}:{port}"),
            Place::Unix(path) => path.display().to_string(),
        };
        Self {
            place,
            endpoint: endpoint.into(),
            username: None,
            password: None,
            db: 0,
            wait_for_server: false,
            connect_timeout: None,
        }
    }

    fn parse_url(scheme: &str, rest: &str) -> Result<Self> {
        let unix = match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => false,
            "unix" | "redis+unix" | "valkey+unix" => true,
            "rediss" | "valkeys" => return Err(no_tls("the URL's scheme")),
            _ => {
                return Err(refused(
                    "scheme",
                    "must be redis, unix or redis+unix (rediss is TLS, which this version does not have)",
                ));
            }
        };
        let (rest, fragment) = cut(rest, '#');
        let (rest, query) = cut(rest, '?');
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let stray = [Some(path), query, fragment];
        if fragment.is_some() || stray.iter().flatten().any(|part| part.contains('@')) {
            return Err(unencoded("user name or password", "is not encoded"));
        }
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, authority),
        };
        let mut target = if unix {
            if !host.is_empty() {
                return Err(refused(
                    "host",
                    "must be empty for a socket path: three slashes, as in unix:///run/redis.sock",
                ));
            }
            Self::of(socket_path(&decoded("path", path)?)?)
        } else {
            Self::of(host_and_port(host)?)
        };
        if let Some(login) = login {
            target.log_in(login)?;
        }
        if !unix {
            target.db = match path.trim_matches('/') {
                "" => 0,
                db => database("path", db)?,
            };
        }
        for (name, value) in pairs(query.unwrap_or_default(), '&') {
            target.take_parameter(name, value)?;
        }
        Ok(target)
    }

    /// `user:password`, `:password` or `user:`.
    fn log_in(&mut self, login: &str) -> Result<()> {
        let Some((user, password)) = login.split_once(':') else {
            return Err(refused(
                "part before the @",
                "has no colon: write user:password@, or :password@ without a user name",
            ));
        };
        if !user.is_empty() {
            self.username = Some(text("user name", user)?);
        }
        if !password.is_empty() || self.username.is_some() {
            self.password = Some(Secret::new(decoded("password", password)?));
        }
        Ok(())
    }

    fn take_parameter(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "db" => {
                let db = database("parameter db", value)?;
                if self.db != 0 && self.db != db {
                    return Err(refused(
                        "parameter db",
                        "names another database than the path",
                    ));
                }
                self.db = db;
            }
            "user" => self.username = Some(text("parameter user", value)?),
            "pass" | "password" => {
                self.password = Some(Secret::new(decoded("parameter pass", value)?));
            }
            // the version of the protocol is our own business
            "protocol" => {}
            _ => {
                return Err(refused(
                    "query",
                    "has an unknown parameter: db, user and pass are known",
                ));
            }
        }
        Ok(())
    }

    fn parse_options(text: &str) -> Result<Self> {
        let mut places = Vec::new();
        let mut options = Vec::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                None => places.push(part),
                Some((name, value)) => options.push((name.trim(), value.trim())),
            }
        }
        let mut target = match *places {
            [] => return Err(refused("host", "is missing")),
            [one] if one.starts_with('/') => Self::of(socket_path(one.as_bytes())?),
            [one] => Self::of(host_and_port(one)?),
            _ => {
                return Err(refused(
                    "list of endpoints",
                    "has more than one, which is not supported (a password with a comma has to be given \
                     apart, or in a URL)",
                ));
            }
        };
        for (name, value) in options {
            target.take_option(name, value)?;
        }
        Ok(target)
    }

    fn take_option(&mut self, name: &str, value: &str) -> Result<()> {
        match name.to_ascii_lowercase().as_str() {
            "password" if value.is_empty() => self.password = None,
            "password" => self.password = Some(Secret::new(value.as_bytes())),
            "user" => self.username = (!value.is_empty()).then(|| value.into()),
            "defaultdatabase" => self.db = database("option defaultDatabase", value)?,
            "ssl" if boolean("option ssl", value)? => return Err(no_tls("the option ssl")),
            "ssl" => {}
            "abortconnect" => self.wait_for_server = !boolean("option abortConnect", value)?,
            "connecttimeout" => {
                self.connect_timeout = Some(millis("option connectTimeout", value)?);
            }
            known if NO_MEANING_HERE.contains(&known) => {}
            // Its name is not told: it can be the end of a password that holds a comma.
            _ => log::warn!(
                "the connection string has an option that is not known and has no effect; known are \
                 password, user, defaultDatabase, connectTimeout, abortConnect and ssl"
            ),
        }
        Ok(())
    }

    /// `127.0.0.1:6379`, `[::1]:6379` or `/run/redis.sock`.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn db(&self) -> u32 {
        self.db
    }

    pub(crate) fn username(&self) -> Option<&str> {
        self.username.as_deref()
    }

    /// Tells logins apart without keeping them.
    pub(crate) fn login_hash(&self) -> u64 {
        static KEYED: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        KEYED.hash_one(self.credentials())
    }

    /// User name and password, when there is anything to log in with.
    pub(crate) fn credentials(&self) -> Option<(&str, &[u8])> {
        if self.username.is_none() && self.password.is_none() {
            return None;
        }
        let password = self.password.as_ref().map_or(&b""[..], Secret::reveal);
        Some((self.username().unwrap_or("default"), password))
    }

    /// Whether a start is to wait for a server that is down (`abortConnect=false`).
    pub(crate) fn wait_for_server(&self) -> bool {
        self.wait_for_server
    }

    /// The `connectTimeout` of a connection string.
    pub(crate) fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }

    /// Replaces the user name.
    #[must_use]
    pub(crate) fn with_username(mut self, username: &str) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Replaces the password, which is taken as it is: nothing is decoded.
    #[must_use]
    pub(crate) fn with_password(mut self, password: Secret) -> Self {
        self.password = Some(password);
        self
    }

    /// Replaces the database.
    #[must_use]
    pub(crate) fn with_db(mut self, db: u32) -> Self {
        self.db = db;
        self
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (database {})", self.endpoint, self.db)
    }
}

fn refused(part: &str, why: &str) -> Error {
    Error::config(format!("the server address: its {part} {why}"))
}

fn no_tls(what: &str) -> Error {
    Error::config(format!(
        "the server address: {what} asks for TLS, which this version does not have: \
         use a plain connection, or a tunnel such as stunnel"
    ))
}

/// As [`refused`], with what a person needs to know whose password is not encoded.
fn unencoded(part: &str, why: &str) -> Error {
    refused(part, &format!("{why}; {ENCODING}"))
}

fn cut(text: &str, at: char) -> (&str, Option<&str>) {
    match text.split_once(at) {
        Some((before, after)) => (before, Some(after)),
        None => (text, None),
    }
}

fn pairs(text: &str, between: char) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split(between).filter(|p| !p.is_empty());
    parts.map(|p| p.split_once('=').unwrap_or((p, "")))
}

fn host_and_port(text: &str) -> Result<Place> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let Some((host, rest)) = rest.split_once(']') else {
            return Err(refused("host", "has a [ without its ]"));
        };
        if host.parse::<Ipv6Addr>().is_err() {
            return Err(refused("host", "is no IPv6 address, though in brackets"));
        }
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(refused("host", "goes on after its ]")),
        }
    } else if text.parse::<Ipv6Addr>().is_ok() {
        (text, None)
    } else {
        cut(text, ':')
    };
    if host.is_empty() {
        return Err(refused("host", "is missing"));
    }
    let known = |c: char| c.is_alphanumeric() || "-._:".contains(c);
    if !host.chars().all(known) {
        return Err(unencoded("host", "holds a character no host name has"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(unencoded("port", "is no number from 1 to 65535")),
        },
    };
    Ok(Place::Tcp {
        host: host.into(),
        port,
    })
}

fn socket_path(path: &[u8]) -> Result<Place> {
    if !path.starts_with(b"/") || path.len() < 2 {
        return Err(refused("path", "is missing"));
    }
    if path.len() > MAX_PATH {
        return Err(refused(
            "path",
            "is longer than 107 bytes, the most a socket can have",
        ));
    }
    match std::str::from_utf8(path) {
        Ok(path) if !path.contains('\0') => Ok(Place::Unix(Path::new(path).to_owned())),
        _ => Err(refused("path", "is not plain UTF-8")),
    }
}

fn database(part: &str, text: &str) -> Result<u32> {
    text.parse()
        .map_err(|_| refused(part, "must be the number of a database, from 0"))
}

fn boolean(part: &str, text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(refused(part, "must be true or false")),
    }
}

fn millis(part: &str, text: &str) -> Result<Duration> {
    match text.parse::<u32>() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms.into())),
        _ => Err(refused(part, "must be a number of milliseconds above 0")),
    }
}

fn text(part: &str, encoded: &str) -> Result<Box<str>> {
    String::from_utf8(decoded(part, encoded)?)
        .map(Into::into)
        .map_err(|_| refused(part, "is not UTF-8"))
}

/// Undoes percent codes. A `+` is a plus sign: these are not form fields.
fn decoded(part: &str, encoded: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(unencoded(part, "has a % that begins no percent code"));
        };
        out.push((high * 16 + low) as u8);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn parsed(text: &str) -> Target {
        Target::parse(text).unwrap()
    }

    #[test]
    fn urls_say_where_and_as_whom() {
        for (url, endpoint, db, login) in [
            ("redis://localhost", "localhost:6379", 0, None),
            ("redis://127.0.0.1:7000/5", "127.0.0.1:7000", 5, None),
            ("valkey://h/", "h:6379", 0, None),
            ("REDIS://h?db=3&protocol=resp3", "h:6379", 3, None),
            ("redis://[::1]", "[::1]:6379", 0, None),
            ("redis://[2001:db8::1]:7/2", "[2001:db8::1]:7", 2, None),
            ("redis://:pw@h", "h:6379", 0, Some(("default", "pw"))),
            ("redis://bob:p%40w@h/1", "h:6379", 1, Some(("bob", "p@w"))),
            ("redis://bob:@h", "h:6379", 0, Some(("bob", ""))),
            ("redis://:@h", "h:6379", 0, None),
            ("redis://b%3Ab:a@b@h", "h:6379", 0, Some(("b:b", "a@b"))),
            (
                "redis://:p@s%23s%2F%2525+:=%3F&x@h",
                "h:6379",
                0,
                Some(("default", "p@s#s/%25+:=?&x")),
            ),
            ("unix:///run/r.sock", "/run/r.sock", 0, None),
            ("redis+unix:///r%20x?db=4", "/r x", 4, None),
            (
                "unix:///r?db=4&user=bob&pass=a%26b+c",
                "/r",
                4,
                Some(("bob", "a&b+c")),
            ),
            ("unix://bob:pw@/r?db=1", "/r", 1, Some(("bob", "pw"))),
        ] {
            let t = parsed(url);
            assert_eq!((t.endpoint(), t.db()), (endpoint, db), "{url}");
            let login = login.map(|(user, password)| (user, password.as_bytes()));
            assert_eq!(t.credentials(), login, "{url}");
        }
    }

    #[test]
    fn connection_strings_say_the_same() {
        let t = parsed(
            "[::1]:7000, password=p=%25:@x, USER=bob,defaultDatabase=5,ssl=False,abortConnect=false,\
             connectTimeout=1500,syncTimeout=800,name=billing,keepAlive=60,$CLIENT=x",
        );
        assert_eq!((t.endpoint(), t.db()), ("[::1]:7000", 5));
        assert_eq!(t.credentials(), Some(("bob", &b"p=%25:@x"[..])));
        assert!(t.wait_for_server());
        assert_eq!(t.connect_timeout(), Some(Duration::from_millis(1500)));

        let t = parsed("redis");
        assert_eq!(
            (t.endpoint(), t.db(), t.wait_for_server()),
            ("redis:6379", 0, false)
        );
        assert_eq!((t.connect_timeout(), t.credentials()), (None, None));
        assert_eq!(parsed("/run/r.sock,password=a").endpoint(), "/run/r.sock");
        assert_eq!(parsed("::1").endpoint(), "[::1]:6379");
        assert_eq!(parsed("h,name=a://b").endpoint(), "h:6379");
    }

    #[test]
    fn separate_fields_go_before_what_the_text_says() {
        let t = parsed("redis://a:b@h/1")
            .with_username("bob")
            .with_password(Secret::new(*b"p@s#s/%25+:=?&x"))
            .with_db(7);
        assert_eq!(t.credentials(), Some(("bob", &b"p@s#s/%25+:=?&x"[..])));
        assert_eq!(t.db(), 7);
    }

    #[test]
    fn a_mistake_is_told_by_its_part_and_never_repeated() {
        // `s3cret` stands where people put passwords
        for (given, told) in [
            ("", "host is missing"),
            ("redis://", "host is missing"),
            ("redis://:s3cret@:6379", "host is missing"),
            ("s3cret://h", "scheme must be"),
            ("rediss://:s3cret@h", "this version does not have"),
            ("h,password=s3cret,ssl=true", "this version does not have"),
            ("redis://:s3cret#x@h", "password is not encoded"),
            ("redis://:s3cret?x@h", "password is not encoded"),
            ("redis://:s3cret/x@h", "password is not encoded"),
            (
                "redis://:p@s3cret#s/%25+:=?&x@h:6379",
                "password is not encoded",
            ),
            ("redis://:s3cret%zz@h", "password has a %"),
            ("redis://:s3cret%2@h", "password has a %"),
            ("redis://s3cret%@h", "before the @ has no colon"),
            ("redis://s%ff:s3cret@h", "user name is not UTF-8"),
            ("redis://h:s3cret", "port is no number"),
            ("redis://h:0", "port is no number"),
            ("redis://h:65536", "port is no number"),
            ("redis://h/s3cret", "path must be the number"),
            ("redis://h/-1", "path must be the number"),
            ("redis://h/1?db=2", "names another database"),
            ("redis://h?s3cret=1", "unknown parameter"),
            ("redis://[::1", "[ without its ]"),
            ("redis://[h]", "no IPv6 address"),
            ("redis://[::1]s3cret", "goes on after"),
            ("redis://s3cret h", "no host name has"),
            ("unix://s3cret/r", "host must be empty"),
            ("unix://", "path is missing"),
            ("unix:///r%00", "path is not plain"),
            ("a,b,password=s3cret", "more than one"),
            ("password=s3cret", "host is missing"),
            ("h,defaultDatabase=s3cret", "defaultDatabase must be"),
            ("h,abortConnect=s3cret", "abortConnect must be"),
            ("h,connectTimeout=0", "connectTimeout must be"),
        ] {
            let e = Target::parse(given).unwrap_err();
            let text = format!("{e} {e:?}");
            assert!(text.contains(told), "{given}: {text}");
            assert!(!text.contains("s3cret"), "{given}: {text}");
            assert_eq!(e.kind(), ErrorKind::Config);
        }
        let long = format!("unix:///{}", "x".repeat(107));
        assert!(Target::parse(&long).unwrap_err().message().contains("107"));
        let e = Target::parse("redis://:a#b@h").unwrap_err();
        assert!(e.message().contains("# as %23"), "{e}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let t = parsed("redis://bob:s3cret@h/2");
        assert_eq!(t.to_string(), "h:6379 (database 2)");
        assert!(!format!("{t:?}").contains("s3cret"));
        assert!(format!("{t:?}").contains("***"));
    }
}
