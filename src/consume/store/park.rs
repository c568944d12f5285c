//! Making a message a dead letter: the one command that writes it and moves the position.

use std::time::Duration;

use crate::{
    Result, StreamId,
    error::{Error, ErrorKind},
    net::{
        Connection, Inbox, resp,
        script::{Form, by_hash_first},
    },
    position::Snapshot,
    wire::{Letter, MOST_FIELDS},
};

use super::{
    super::fenced::{Fate, PARK},
    PositionStore,
    write::{not_fates, ordinal},
};

/// A message that is to be a dead letter.
pub(in crate::consume) struct Parked<'a> {
    pub(in crate::consume) letter: Letter<'a>,
    /// Every field of it, in order, as many as are kept.
    pub(in crate::consume) fields: &'a [(&'a [u8], &'a [u8])],
    /// The position behind it; `None` where positions are not stored.
    pub(in crate::consume) position: Option<Snapshot>,
    /// How long ago it failed first, and last.
    pub(in crate::consume) ago: [Duration; 2],
    /// How many letters are kept, and for how long; zero: for ever.
    pub(in crate::consume) keep: (u64, Duration),
}

impl PositionStore {
    /// Writes the letter and moves the position, or does neither. Tells what became of the position, and
    /// the id of the letter where it is stored. Blocks for a round trip, or two when the server has to be
    /// told the script; what it needs is allocated.
    ///
    /// # Errors
    ///
    /// The server's refusal. After any other error the connection must be given up; doing it again is
    /// doing it once.
    pub(in crate::consume) fn park(
        &mut self,
        connection: &mut Connection,
        inbox: &mut Inbox,
        parked: &Parked<'_>,
        timeout: Duration,
    ) -> Result<(Fate, Option<StreamId>)> {
        let mut commands = Vec::new();
        let done = by_hash_first(|form| {
            commands.clear();
            self.render_park(form, &mut commands, parked);
            let mut answer = Err(not_fates());
            inbox.exchange(connection, &commands, 1, timeout, |_, reply| {
                answer = read(reply);
            })?;
            answer
        });
        done.map_err(|e| {
            let key = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            PARK.saying_what_to_grant(e, &[&key(&self.letters_key), &key(&self.positions_key)])
        })
    }

    fn render_park(&self, form: Form, out: &mut Vec<u8>, parked: &Parked<'_>) {
        let Parked { letter, fields, .. } = parked;
        debug_assert!(fields.len() <= MOST_FIELDS);
        let own = letter.pairs();
        PARK.begin(out, form, 6, 11 + 2 * (own.len() + fields.len()));
        for key in [
            &self.positions_key,
            &self.meta_key,
            &self.ownership_key,
            &self.expiries_key,
            &self.letters_key,
            &self.letters_meta_key,
        ] {
            resp::arg(out, key);
        }
        let (me, mode) = self.claim();
        resp::arg(out, me.as_bytes());
        resp::arg(out, mode.as_bytes());
        resp::arg_number(out, u64::from(letter.partition));
        if let Some(position) = parked.position {
            resp::arg(out, &self.value_of(position.id));
            ordinal(out, position);
        } else {
            resp::arg(out, b"");
            resp::arg(out, b"");
        }
        resp::arg(out, letter.last.to_string().as_bytes());
        let (most, age) = parked.keep;
        resp::arg_number(out, most);
        for span in [age, parked.ago[0], parked.ago[1]] {
            resp::arg_number(out, u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        }
        resp::arg_number(out, letter.own() as u64);
        for (name, value) in &own {
            resp::arg(out, name.as_bytes());
            resp::arg(out, value.as_bytes());
        }
        for (name, value) in *fields {
            resp::arg(out, name);
            resp::arg(out, value);
        }
    }
}

/// What the script answers.
fn read(reply: &[u8]) -> Result<(Fate, Option<StreamId>)> {
    let (letter, id) = reply.split_first().ok_or_else(not_fates)?;
    let fate = Fate::of(*letter).ok_or_else(not_fates)?;
    let id = match fate {
        Fate::Stored => Some(StreamId::parse(id).ok_or_else(|| {
            let what = "the answer names no dead letter";
            Error::new(ErrorKind::Protocol, "park", what)
        })?),
        _ => None,
    };
    Ok((fate, id))
}
