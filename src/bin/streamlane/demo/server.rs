//! The server a run uses: its own, or one that was named.

use std::{error::Error, time::Duration};

use redis::{Connection, RedisResult};
use streamlane::testing::PrivateServer;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Server {
    url: String,
    /// Lives as long as the run does.
    private: Option<PrivateServer>,
}

impl Server {
    /// The one at this URL, or one of our own on a Unix socket.
    pub(crate) fn open(url: Option<&str>) -> Result<Self, Box<dyn Error>> {
        if let Some(url) = url {
            return Ok(Self {
                url: url.to_owned(),
                private: None,
            });
        }
        // Snapshots as servers make them unless told otherwise: a run is over before the first.
        let server = PrivateServer::builder().config("save 3600 1").start()?;
        Ok(Self {
            url: server.url(),
            private: Some(server),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Its name and version and where it is, without any password.
    pub(crate) fn describe(&self) -> Result<String, Box<dyn Error>> {
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("server").query(&mut self.connect()?)?;
        let find = |name: &str| {
            let line = info.lines().find_map(|l| l.strip_prefix(name))?;
            line.strip_prefix(':').map(str::trim)
        };
        let name = find("server_name").unwrap_or("redis");
        let version = find(&format!("{name}_version")).unwrap_or("?");
        let place = if self.is_private() {
            "of its own, on a unix socket".to_owned()
        } else {
            format!("at {}", self.client()?.get_connection_info().addr())
        };
        Ok(format!("{name} {version} {place}"))
    }

    /// The id in each partition's stored position; nothing where none is stored.
    pub(crate) fn positions(&self, key: &str, partitions: u32) -> RedisResult<Vec<Option<String>>> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(key).arg((0..partitions).collect::<Vec<_>>());
        let values: Vec<Option<String>> = cmd.query(&mut self.connect()?)?;
        let id = |v: String| v.split('|').next().unwrap_or_default().to_owned();
        Ok(values.into_iter().map(|v| v.map(id)).collect())
    }

    /// Deletes the keys of a topic, and takes it off the list of topics.
    pub(crate) fn delete(&self, topic: &str, keys: &[String]) -> RedisResult<()> {
        let mut c = self.connect()?;
        redis::cmd("UNLINK").arg(keys).exec(&mut c)?;
        redis::cmd("ZREM").arg("re:topics").arg(topic).exec(&mut c)
    }

    fn client(&self) -> RedisResult<redis::Client> {
        redis::Client::open(self.url())
    }

    fn connect(&self) -> RedisResult<Connection> {
        let connection = self
            .client()?
            .get_connection_with_timeout(CONNECT_TIMEOUT)?;
        connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        connection.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(connection)
    }
}
