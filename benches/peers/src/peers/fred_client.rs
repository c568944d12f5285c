//! fred, on a tokio runtime of its own: of one thread, which is the fastest for one caller.

use fred::{
    clients::Client,
    interfaces::{ClientLike, FredResult, StreamsInterface},
    types::{Builder, FromValue, Value, config::Config, streams::XReadResponse},
};
use tokio::runtime::{self, Runtime};

use super::{Peer, items};
use crate::{KEPT, Outcome, meter::Meter, site::Site};

struct Fred {
    client: Client,
    key: String,
    site: Site,
    runtime: Runtime,
}

pub(super) fn open(site: &Site) -> Outcome<Box<dyn Peer>> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = Builder::from_config(Config::from_url(&site.url())?)
        .with_connection_config(|c| c.tcp.nodelay = Some(true))
        .build()?;
    runtime.block_on(client.init())?;
    Ok(Box::new(Fred {
        client,
        key: site.stream(),
        site: site.clone(),
        runtime,
    }))
}

/// Adds an entry, over the connection or to a pipeline.
async fn xadd<R: FromValue>(
    to: &impl StreamsInterface,
    key: &str,
    body: &'static [u8],
) -> FredResult<R> {
    let kept = ("MAXLEN", "~", KEPT.cast_signed());
    let items = items(body).map(|(name, value)| (name, Value::from_static(value)));
    to.xadd(key, false, kept, "*", Vec::from(items)).await
}

impl Peer for Fred {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        let mut lap = meter.lap(0);
        self.runtime.block_on(async {
            let mut cursor = "0-0".to_owned();
            while lap.is_running() {
                let (count, key) = (Some(self.site.batch.into()), &*self.key);
                let mut reply: XReadResponse<String, String, String, Value> = self
                    .client
                    .xread_map(count, Some(1000), key, cursor)
                    .await?;
                let entries = reply.remove(key).ok_or("the stream ended early")?;
                cursor = String::new();
                for (id, fields) in entries {
                    if let Some(body) = fields.get("b").and_then(Value::as_bytes) {
                        lap.see(body);
                    }
                    cursor = id;
                }
            }
            Ok(())
        })
    }

    fn publish(&mut self) -> Outcome<()> {
        let id = xadd(&self.client, &self.key, self.site.body);
        let _id: String = self.runtime.block_on(id)?;
        Ok(())
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        self.runtime.block_on(async {
            let pipeline = self.client.pipeline();
            for _ in 0..self.site.batch {
                let () = xadd(&pipeline, &self.key, self.site.body).await?;
            }
            let _ids: Vec<String> = pipeline.all().await?;
            Ok(())
        })
    }
}
