//! What becomes of a message that failed: a dead letter, or an item of the delay bucket. Each is written by the
//! script that acknowledges the entry.

use std::time::Duration;

use crate::{
    Message, Result, StreamId,
    batch::Record,
    clock,
    consume::{Failures, Flow, Lane, letter_fields},
    error::{Error, ErrorKind, Outcome},
    net::{
        Connection, Inbox, resp,
        script::{Form, Script, by_hash_first},
    },
    wire::{DeadLetterReason, ID_MAX, Letter, MOST_FIELDS},
};

use super::{
    acks::Settled,
    birth,
    group::{Group, Known},
    origin::Origin,
    plan::Source,
    scripts::{PARK, RETRY},
};

/// What became of an entry.
pub(super) enum Fate {
    /// It has its successor. Of a dead letter its id.
    Done(Option<StreamId>),
    /// It was not ours any more.
    Anothers,
}

/// The successor of one entry, ready to be written.
struct Successor {
    script: &'static Script,
    keys: Vec<String>,
    args: Vec<Vec<u8>>,
}

impl Lane<Group> {
    /// One attempt to make a record a dead letter.
    pub(super) fn try_park(
        &mut self,
        index: usize,
        reason: DeadLetterReason,
        failures: &Failures<'_>,
    ) -> Result<Fate> {
        let record = self.reader.records()[index];
        let known = self.progress.known(index, &record);
        let Known { entry, origin, .. } = known;
        let plan = &self.progress.plan;
        let message = Message::new(self.reader.bytes(), &record, &self.context);
        let (fields, payload) = letter_fields(&message, &record);
        let letter = Letter {
            topic: &self.context.topic,
            partition: origin.partition,
            first: origin.first,
            last: entry,
            attempts: origin.attempts.saturating_add(failures.attempts),
            deliveries: known.deliveries(failures),
            error: failures.error,
            consumer: &self.context.consumer,
            reason,
            omitted: (record.pairs as usize).saturating_sub(MOST_FIELDS),
            payload: payload.as_deref(),
        };
        let (most, age) = self.plan.parking.keep;
        let until = clock::now().duration_since(failures.until);
        let since = clock::unix_ms(clock::wall()).saturating_sub(known.failed_since_ms(failures));
        let text = |n: u128| n.to_string().into_bytes();
        let mut args = vec![
            entry.to_string().into_bytes(),
            text(u128::from(most)),
            text(age.as_millis()),
            text(u128::from(since)),
            text(until.as_millis()),
            text(letter.own() as u128),
        ];
        for (name, value) in letter.pairs() {
            args.push(name.into());
            args.push(value.into_bytes());
        }
        args.extend(fields.into_iter().flat_map(|(n, v)| [n, v]));
        let keys = vec![plan.keys.letters.clone()];
        let script = &PARK;
        self.write(&Successor { script, keys, args })
    }

    /// One attempt to have a record handed over again after `pause`.
    pub(super) fn try_retry(
        &mut self,
        index: usize,
        pause: Duration,
        failures: &Failures<'_>,
    ) -> Result<Fate> {
        let record = self.reader.records()[index];
        let known = self.progress.known(index, &record);
        let Known { entry, origin, .. } = known;
        let origin = Origin {
            since_ms: known.failed_since_ms(failures),
            attempts: origin.attempts.saturating_add(1),
            deliveries: known.deliveries(failures),
            ..origin
        };
        let plan = &self.progress.plan;
        // An id of the retry stream may be one of the partition, too.
        let of = match self.progress.source {
            Source::Retries => "r",
            Source::Partition(_) => "",
        };
        let item = format!("{of}{}-{}-{entry}", origin.partition, origin.attempts);
        let mut args = vec![
            entry.to_string().into_bytes(),
            item.into_bytes(),
            pause.as_millis().to_string().into_bytes(),
        ];
        for (name, value) in origin.pairs() {
            args.push(name.into());
            args.push(value.into_bytes());
        }
        args.extend(
            self.fields_of(&record)
                .into_iter()
                .flat_map(|(n, v)| [n, v]),
        );
        let keys = vec![plan.keys.bucket.clone(), plan.keys.items.clone()];
        let script = &RETRY;
        self.write(&Successor { script, keys, args })
    }

    /// The fields of a message, as many as a script takes.
    fn fields_of(&self, record: &Record) -> Vec<(Vec<u8>, Vec<u8>)> {
        let message = Message::new(self.reader.bytes(), record, &self.context);
        let own = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
        message.fields().take(MOST_FIELDS).map(own).collect()
    }

    fn write(&mut self, successor: &Successor) -> Result<Fate> {
        self.connect()?;
        let Self {
            progress,
            reader,
            inbox,
            plan,
            ..
        } = self;
        let (Some(connection), key) = reader.connection_to() else {
            return Err(Error::new(
                ErrorKind::Io,
                "write a successor",
                "not connected",
            ));
        };
        let patience = plan.read.slack;
        let answer = by_hash_first(|form| {
            progress.exchange((connection, inbox), form, successor, key, patience)
        });
        answer.map_err(|e| {
            let keys: Vec<&str> = successor.keys.iter().map(String::as_str).collect();
            let e = successor.script.saying_what_to_grant(e, &keys);
            let about_entry = matches!(e.server_code(), Some("NOGROUP" | "UNCLAIMED" | "CLAIMED"));
            let about = if about_entry { key } else { keys[0].as_bytes() };
            e.on_key(about).at(plan.target.endpoint())
        })
    }
}

impl Group {
    fn exchange(
        &self,
        (connection, inbox): (&mut Connection, &mut Inbox),
        form: Form,
        successor: &Successor,
        stream: &[u8],
        patience: Duration,
    ) -> Result<Fate> {
        let Successor { script, keys, args } = successor;
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut out = Vec::with_capacity(args.iter().map(|a| a.len() + 16).sum::<usize>() + 512);
        let of = (self.source, stream);
        self.plan
            .begin((script, form), &mut out, of, &keys, args.len());
        for arg in args {
            resp::arg(&mut out, arg);
        }
        let mut fate = None;
        inbox.exchange(connection, &out, 1, patience, |_, answer| {
            fate = match answer {
                b"x" => Some(Fate::Anothers),
                b"d" => Some(Fate::Done(None)),
                id if id.len() <= ID_MAX => StreamId::parse(id).map(|id| Fate::Done(Some(id))),
                _ => None,
            };
        })?;
        fate.ok_or_else(|| {
            let what = "the answer is none of the script's";
            Error::new(ErrorKind::Protocol, "write a successor", what)
        })
    }
}

impl Group {
    /// Writes what comes in the place of a record, however often that takes.
    pub(super) fn succeed(
        lane: &mut Lane<Self>,
        index: usize,
        mut attempt: impl FnMut(&mut Lane<Self>) -> Result<Fate>,
        told: impl FnOnce(&mut Lane<Self>, Option<StreamId>),
    ) -> Flow {
        let Lane {
            progress, reader, ..
        } = lane;
        progress.owe(reader.records(), index);
        let mut may_be_done = false;
        loop {
            match lane.heed_signals() {
                Flow::On => {}
                away => return away,
            }
            match attempt(lane) {
                Ok(fate) => {
                    lane.reads_again();
                    lane.progress.settled = index + 1;
                    match fate {
                        Fate::Done(letter) => {
                            lane.progress.count_deleted(1);
                            told(lane, letter);
                        }
                        Fate::Anothers if may_be_done => log::info!(
                            "{lane}: an answer was lost: a failed message has its successor, or is another's"
                        ),
                        Fate::Anothers => {
                            let late = Settled {
                                acked: 0,
                                late: 1,
                                first_late: Some(lane.reader.records()[index].id),
                            };
                            Self::heed_settled(lane, late);
                        }
                    }
                    return Flow::On;
                }
                Err(e) => {
                    may_be_done |= e.outcome() != Outcome::NotApplied;
                    lane.progress.heed_refusal(&e);
                    if birth::is_gone(&e) {
                        // Whoever is given it next deals with it.
                        lane.progress.settled = index + 1;
                        return Flow::On;
                    }
                    lane.wait_out(&e);
                }
            }
        }
    }
}
