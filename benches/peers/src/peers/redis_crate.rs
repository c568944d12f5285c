//! The `redis` crate, as it blocks: down to its `Value`, and down to the types it has for streams.

use redis::{
    Client, Cmd, Commands, Connection, IntoConnectionInfo, Value, cmd,
    io::tcp::TcpSettings,
    pipe,
    streams::{StreamMaxlen, StreamReadOptions, StreamReadReply},
};

use super::{Peer, items};
use crate::{
    KEPT, Outcome,
    meter::{Lap, Meter},
    site::Site,
};

struct Link {
    connection: Connection,
    key: String,
    site: Site,
}

struct Raw(Link);
struct Typed(Link);

pub(super) fn raw(site: &Site) -> Outcome<Box<dyn Peer>> {
    Ok(Box::new(Raw(Link::open(site)?)))
}

pub(super) fn typed(site: &Site) -> Outcome<Box<dyn Peer>> {
    Ok(Box::new(Typed(Link::open(site)?)))
}

impl Link {
    fn open(site: &Site) -> Outcome<Self> {
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = site.url().into_connection_info()?.set_tcp_settings(tcp);
        Ok(Self {
            connection: Client::open(info)?.get_connection()?,
            key: site.stream(),
            site: site.clone(),
        })
    }

    fn xadd(&self) -> Cmd {
        let mut cmd = cmd("XADD");
        cmd.arg(&self.key).arg("MAXLEN").arg("~").arg(KEPT).arg("*");
        cmd.arg(&items(self.site.body));
        cmd
    }
}

/// Nothing came, or something else than entries.
const NO_ENTRIES: &str = "the stream ended early";

impl Peer for Raw {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        let mut lap = meter.lap(0);
        let link = &mut self.0;
        let mut cursor = b"0-0".to_vec();
        while lap.is_running() {
            let reply = cmd("XREAD")
                .arg("BLOCK")
                .arg(1000)
                .arg("COUNT")
                .arg(link.site.batch)
                .arg("STREAMS")
                .arg(&link.key)
                .arg(&cursor)
                .query(&mut link.connection)?;
            cursor = see_all(reply, &mut lap).ok_or(NO_ENTRIES)?;
        }
        Ok(())
    }

    fn publish(&mut self) -> Outcome<()> {
        let _id: Value = self.0.xadd().query(&mut self.0.connection)?;
        Ok(())
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        let mut pipe = pipe();
        for _ in 0..self.0.site.batch {
            pipe.add_command(self.0.xadd());
        }
        let _ids: Vec<Value> = pipe.query(&mut self.0.connection)?;
        Ok(())
    }
}

/// Shows the bodies of a reply to the meter, and returns the last id.
fn see_all(reply: Value, lap: &mut Lap) -> Option<Vec<u8>> {
    let [stream] = array(reply)?.try_into().ok()?;
    let [_key, entries] = array(stream)?.try_into().ok()?;
    let mut last = None;
    for entry in array(entries)? {
        let [id, fields] = array(entry)?.try_into().ok()?;
        for field in array(fields)?.chunks_exact(2) {
            if let [Value::BulkString(name), Value::BulkString(value)] = field
                && name == b"b"
            {
                lap.see(value);
            }
        }
        last = Some(id);
    }
    match last? {
        Value::BulkString(id) => Some(id),
        _ => None,
    }
}

fn array(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

impl Peer for Typed {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        let mut lap = meter.lap(0);
        let link = &mut self.0;
        let options = StreamReadOptions::default()
            .block(1000)
            .count(link.site.batch as usize);
        let mut cursor = "0-0".to_owned();
        while lap.is_running() {
            let reply: Option<StreamReadReply> =
                link.connection
                    .xread_options(&[&link.key], &[&cursor], &options)?;
            for stream in reply.ok_or(NO_ENTRIES)?.keys {
                for entry in stream.ids {
                    if let Some(Value::BulkString(body)) = entry.map.get("b") {
                        lap.see(body);
                    }
                    cursor = entry.id;
                }
            }
        }
        Ok(())
    }

    fn publish(&mut self) -> Outcome<()> {
        let link = &mut self.0;
        let items = items(link.site.body);
        let kept = StreamMaxlen::Approx(KEPT as usize);
        let _id: Option<String> = link.connection.xadd_maxlen(&link.key, kept, "*", &items)?;
        Ok(())
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        let link = &mut self.0;
        let items = items(link.site.body);
        let mut pipe = pipe();
        for _ in 0..link.site.batch {
            let kept = StreamMaxlen::Approx(KEPT as usize);
            pipe.xadd_maxlen(&link.key, kept, "*", &items);
        }
        let _ids: Vec<String> = pipe.query(&mut link.connection)?;
        Ok(())
    }
}
