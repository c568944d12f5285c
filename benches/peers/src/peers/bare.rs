//! The bare socket: what the server and the kernel cost, and next to nothing else.

use super::Peer;
use crate::{
    Outcome,
    floor::{Request, Wire, xadd},
    meter::Meter,
    site::Site,
};

/// The most that one read asks for, as streamlane does it: more is slower.
const BATCH_BYTES: usize = 256 * 1024;
/// In front of each body and behind the last.
const FRAMING: usize = 100;

struct Bare {
    wire: Wire,
    site: Site,
    /// To run the handler while the next batch is under way, when all of this one is there.
    ahead: bool,
    one: Vec<u8>,
    many: Vec<u8>,
}

pub(super) fn scanning(site: &Site) -> Outcome<Box<dyn Peer>> {
    open(site, false)
}

pub(super) fn reading_ahead(site: &Site) -> Outcome<Box<dyn Peer>> {
    open(site, true)
}

fn open(site: &Site, ahead: bool) -> Outcome<Box<dyn Peer>> {
    let one = xadd(&site.topic, site.body);
    Ok(Box::new(Bare {
        wire: site.wire()?,
        site: site.clone(),
        ahead,
        many: one.repeat(site.batch as usize),
        one,
    }))
}

impl Peer for Bare {
    fn drain(&mut self, meter: &Meter) -> Outcome<()> {
        let mut lap = meter.lap(0);
        let fits = (BATCH_BYTES / (self.site.body.len() + FRAMING)) as u32;
        let mut request = Request::new(&self.site.stream(), self.site.batch.min(fits));
        let mut cursor = b"0-0".to_vec();
        let mut places = Vec::new();
        self.wire.send(request.after(&cursor))?;
        while lap.is_running() {
            let n = if self.ahead {
                self.wire.index(&mut cursor, &mut places)?
            } else {
                self.wire.entries(&mut cursor, |body| lap.see(body))?
            };
            if n == 0 {
                return Err("the stream ended early".into());
            }
            self.wire.send(request.after(&cursor))?;
            for place in &places {
                lap.see(self.wire.body(*place));
            }
        }
        Ok(())
    }

    fn publish(&mut self) -> Outcome<()> {
        self.wire.send(&self.one)?;
        Ok(self.wire.ids(1)?)
    }

    fn publish_batch(&mut self) -> Outcome<()> {
        self.wire.send(&self.many)?;
        Ok(self.wire.ids(self.site.batch as usize)?)
    }
}
