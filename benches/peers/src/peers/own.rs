//! Streamlane.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use streamlane::{
    Batch, Consumer, DedicatedPublisher, Message, Outgoing, Publisher, Settings, StartFrom,
    StreamId, Streams, TopicSettings,
};

use super::Peer;
use crate::{KEPT, KEY, Outcome, TYPE, meter::Meter, site::Site};

struct Own {
    site: Site,
    style: Style,
    consumer: Option<Consumer>,
    messages: Vec<Outgoing<'static>>,
    ids: Vec<streamlane::Result<StreamId>>,
    streams: Streams,
}

/// How messages are handled, and published.
enum Style {
    Batches(Box<DedicatedPublisher>),
    Messages(Publisher),
}

pub(super) fn batches(site: &Site) -> Outcome<Box<dyn Peer>> {
    open(site, |publisher| {
        Style::Batches(publisher.dedicated().into())
    })
}

pub(super) fn messages(site: &Site) -> Outcome<Box<dyn Peer>> {
    open(site, Style::Messages)
}

fn open(site: &Site, style: fn(Publisher) -> Style) -> Outcome<Box<dyn Peer>> {
    let topic = TopicSettings::default().partitions(1).max_len(KEPT);
    let settings = Settings::default().with_topic(&*site.topic, topic);
    let streams = Streams::open(settings.connection_string(site.url()))?;
    Ok(Box::new(Own {
        site: site.clone(),
        style: style(streams.publisher(&*site.topic)?),
        consumer: None,
        messages: Vec::new(),
        ids: Vec::new(),
        streams,
    }))
}

impl Peer for Own {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        static NTH: AtomicU32 = AtomicU32::new(0);
        let builder = self
            .streams
            .consumer(&*self.site.topic)
            .name(format!("reader-{}", NTH.fetch_add(1, Relaxed)))
            .batch_size(self.site.batch)
            .start_from(StartFrom::Beginning);
        let meter = meter.clone();
        let builder = match self.style {
            Style::Batches(_) => builder.batches(move |_| {
                let mut lap = meter.lap(0);
                move |batch: &Batch<'_>| {
                    for m in batch {
                        lap.see(m.body());
                    }
                    Ok(())
                }
            }),
            Style::Messages(_) => builder.messages(move |_| {
                let mut lap = meter.lap(0);
                move |m: &Message<'_>| {
                    lap.see(m.body());
                    Ok(())
                }
            }),
        };
        self.consumer = Some(builder.start()?);
        Ok(())
    }

    fn publish(&mut self) -> Outcome<()> {
        match &mut self.style {
            Style::Batches(dedicated) => dedicated.publish(KEY, TYPE, self.site.body)?,
            Style::Messages(shared) => shared.publish(KEY, TYPE, self.site.body)?,
        };
        Ok(())
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        self.messages.clear();
        let message = |_| Outgoing::new(TYPE, self.site.body).key(KEY);
        self.messages.extend((0..self.site.batch).map(message));
        match &mut self.style {
            Style::Batches(dedicated) => {
                dedicated.publish_batch_into(&self.messages, &mut self.ids);
            }
            Style::Messages(shared) => shared.publish_batch_into(&self.messages, &mut self.ids),
        }
        Ok(self.ids.drain(..).try_for_each(|id| id.map(drop))?)
    }
}
