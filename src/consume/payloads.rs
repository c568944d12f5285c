//! Bodies that are kept apart, as a lane goes about them: fetched before a message is handed over, and put
//! into its dead letter, which lives on when the payload has expired.

use crate::{
    Failure, Message, Result,
    batch::{Body, Record},
    error::{Error, ErrorKind},
    wire::{MOST_FIELDS, REFERENCE},
};

use super::{
    lane::{Flow, Lane},
    progress::Progress,
};

impl<P: Progress> Lane<P> {
    /// Fetches bodies from the message at `start` of the last read on, however often that takes.
    #[cold]
    pub(super) fn fetch(&mut self, start: usize) -> Flow {
        loop {
            match self.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            match self.try_fetch(start) {
                Ok(()) => {
                    if self.is_in_trouble() {
                        self.reads_again();
                    }
                    return Flow::On;
                }
                Err(e) => self.wait_out(&e),
            }
        }
    }

    fn try_fetch(&mut self, start: usize) -> Result<()> {
        if self.reader.is_outstanding() {
            // What was asked for ahead would be answered first.
            self.reader.disconnect();
        }
        self.connect()?;
        self.reader.fetch(start)
    }
}

/// A message whose body is not where it was kept.
#[cold]
pub(super) fn missing(message: &Message<'_>) -> Failure {
    let reference = reference(message).unwrap_or_default();
    let mut words = reference.split(|b| *b == b' ').map(<[u8]>::escape_ascii);
    let mut word = || words.next().map(|w| w.to_string()).unwrap_or_default();
    let (id, bytes) = (word(), word());
    let what = format!(
        "the body of the message, {bytes} bytes, is not where it was kept, as payload {id}: it has expired \
         (PayloadTtlSeconds), was deleted, or is another"
    );
    Error::new(ErrorKind::PayloadMissing, "fetch", what).into()
}

/// The last reference of a message, whether it means anything or not.
fn reference<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    let found = message.fields().filter(|(name, _)| name == REFERENCE);
    found.last().map(|(_, value)| value)
}

/// Name and value.
type Field = (Vec<u8>, Vec<u8>);

/// The fields of a message for its dead letter. A body that was kept apart is among them, in its place; then
/// there is no reference to it, but that is given beside them.
pub(crate) fn letter_fields(
    message: &Message<'_>,
    record: &Record,
) -> (Vec<Field>, Option<Vec<u8>>) {
    let own = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
    let mut fields: Vec<_> = message.fields().take(MOST_FIELDS).map(own).collect();
    if record.kept != Body::Here || message.body().is_empty() {
        return (fields, None);
    }
    let body = fields.iter_mut().rfind(|(name, _)| name == b"b");
    match body.filter(|(_, value)| value.is_empty()) {
        None => (fields, None),
        Some((_, value)) => {
            *value = message.body().to_vec();
            fields.retain(|(name, _)| name != REFERENCE);
            (fields, reference(message).map(<[u8]>::to_vec))
        }
    }
}
