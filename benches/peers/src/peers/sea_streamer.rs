//! sea-streamer, on a tokio runtime of its own: of one thread, which is the fastest for one caller. It
//! reads and writes one field of an entry, cannot trim, and speaks TCP only.

use sea_streamer_redis::{
    AutoStreamReset, RedisConnectOptions, RedisConsumerOptions, RedisProducer,
    RedisProducerOptions, RedisStreamer,
};
use sea_streamer_types::{
    Buffer, Consumer, ConsumerMode, ConsumerOptions, Message, Producer, StreamKey, Streamer,
};
use tokio::runtime::{Builder, Runtime};

use super::Peer;
use crate::{Outcome, meter::Meter, site::Site};

struct Sea {
    streamer: RedisStreamer,
    key: StreamKey,
    producer: RedisProducer,
    site: Site,
    runtime: Runtime,
}

pub(super) fn open(site: &Site) -> Outcome<Box<dyn Peer>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let key = StreamKey::new(&*site.topic)?;
    let mut options = RedisConnectOptions::default();
    options.set_message_field("b");
    let (streamer, producer) = runtime.block_on(async {
        let streamer = RedisStreamer::connect(site.url().parse()?, options).await?;
        let producer = streamer
            .create_producer(key.clone(), RedisProducerOptions::default())
            .await?;
        Outcome::Ok((streamer, producer))
    })?;
    Ok(Box::new(Sea {
        streamer,
        key,
        producer,
        site: site.clone(),
        runtime,
    }))
}

impl Peer for Sea {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        let mut lap = meter.lap(0);
        let mut options = RedisConsumerOptions::new(ConsumerMode::RealTime);
        options
            .set_auto_stream_reset(AutoStreamReset::Earliest)
            .set_batch_size(self.site.batch as usize);
        self.runtime.block_on(async {
            let key = [self.key.clone()];
            let consumer = self.streamer.create_consumer(&key, options).await?;
            while lap.is_running() {
                let message = consumer.next().await?;
                lap.see(message.message().as_bytes());
            }
            Ok(())
        })
    }

    fn publish(&mut self) -> Outcome<()> {
        let receipt = self.producer.send(self.site.body)?;
        self.runtime.block_on(receipt)?;
        Ok(())
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        let send = |_| self.producer.send(self.site.body);
        let receipts = (0..self.site.batch)
            .map(send)
            .collect::<Result<Vec<_>, _>>()?;
        self.runtime.block_on(async {
            for receipt in receipts {
                receipt.await?;
            }
            Ok(())
        })
    }
}
