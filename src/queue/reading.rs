//! What a member of a group reads next: what it was given before and has not finished, then what is new.

use std::{sync::Arc, time::Duration};

use crate::{
    LaneState, Result, StreamId, clock,
    consume::{Brought, Lane},
    error::{Error, ErrorKind},
    net::script::Form,
    publish::bucket::Due,
    quiet::HeldBack,
    wire::DeadLetterReason,
};

use super::{
    acks::Settled,
    group::{Group, SUSPECT},
    plan::Source,
    scripts::ACK,
    take::{Taken, take_over},
};

/// How many own fields a letter about a broken item has, the times and the error included.
const LETTER_PAIRS: &str = "12";

impl Group {
    pub(super) fn try_read(lane: &mut Lane<Self>) -> Result<Brought> {
        lane.connect()?;
        if lane.progress.hand.has_strays() {
            lane.progress.acquired = false;
        }
        Self::acquire(lane)?;
        let due = Self::move_due(lane)?;
        if lane.progress.hand.has_more() {
            lane.progress.behind = true;
        }
        match lane.progress.hand.lost() {
            0 => {}
            lost => lane.monitor.note_gap(Some(lost), true),
        }
        if !lane.reader.is_outstanding() {
            Self::request(lane, due)?;
        }
        let Lane {
            progress, reader, ..
        } = lane;
        let was_given_before = reader.is_given_before();
        let before = usize::from(progress.debts.is_asked());
        let (mut settled, debts) = (Settled::default(), &mut progress.debts);
        let brought = reader.receive(before, None, |answer| {
            settled = debts.settle(answer)?;
            Ok(())
        });
        Self::heed_settled(lane, settled);
        match brought {
            Err(e) if before > 0 && e.operation() == "acknowledge" => {
                lane.progress.debts.unasked(e.outcome());
                let key = String::from_utf8_lossy(lane.reader.key()).into_owned();
                Err(ACK.saying_what_to_grant(e, &[&key]))
            }
            // now for what is new
            Ok(Brought::Nothing) if was_given_before => Self::try_read(lane),
            brought => brought,
        }
    }

    /// Asks for what was given to us before, if there may be any, else for what is new, with the
    /// acknowledgements that are owed in front.
    pub(super) fn request(lane: &mut Lane<Self>, due: Option<Duration>) -> Result<()> {
        if !lane.progress.has_acked || lane.progress.behind || !lane.progress.debts.are_few() {
            // What is finished is not to be among what is pending.
            Self::pay_now(lane)?;
        }
        if lane.progress.behind && !lane.reader.is_given_before() {
            lane.progress.behind = false;
            lane.reader.begin_with_given();
        }
        if lane.reader.is_given_before() {
            Self::look_at_given(lane)?;
        } else {
            lane.reader.at_most(u32::MAX);
        }
        lane.reader.wait_at_most(due.unwrap_or(Duration::MAX));
        lane.commands.clear();
        let Lane {
            progress,
            reader,
            commands,
            ..
        } = lane;
        if !progress.debts.is_empty() {
            let (plan, of) = (&progress.plan, (progress.source, reader.key()));
            progress.debts.render(plan, Form::Known, commands, of);
            progress.next_ack_ms = clock::coarse_ms() + plan.ack_ms();
        }
        let brief = lane.monitor.state() != LaneState::Running;
        lane.reader.request(&lane.commands, brief)
    }

    /// Of what is pending under our name: how often it was given to somebody, as far as the next read goes.
    pub(super) fn look_at_given(lane: &mut Lane<Self>) -> Result<()> {
        let (key, after) = (lane.reader.key().to_vec(), lane.reader.cursor());
        let most = lane.plan.read.batch_size;
        let member = &lane.progress.plan.member;
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(&key)
            .arg(&*member.group)
            .arg(after.next().to_string())
            .arg("+");
        cmd.arg(most).arg(&*member.name);
        let slack = lane.plan.read.slack;
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "look at what is pending",
                "not connected",
            ));
        };
        let found: Vec<(String, String, u64, u32)> = connection.ask(&cmd, slack)?;
        let given = found
            .iter()
            .filter_map(|(id, _, _, times)| Some((StreamId::parse(id.as_bytes())?, *times)));
        lane.progress.given.clear();
        lane.progress.given.extend(given);
        let suspect = lane
            .progress
            .given
            .iter()
            .position(|(_, times)| *times >= SUSPECT);
        lane.reader.at_most(match suspect {
            Some(0) => 1,
            Some(innocent) => innocent as u32,
            None => u32::MAX,
        });
        Ok(())
    }

    /// Where partitions are claimed: takes over what others have of this one, once it is ours.
    pub(super) fn acquire(lane: &mut Lane<Self>) -> Result<()> {
        let claimed = lane.progress.plan.lease.is_some() && lane.progress.source != Source::Retries;
        if lane.progress.acquired || !claimed || lane.reader.is_outstanding() {
            return Ok(());
        }
        let (key, plan) = (lane.reader.key().to_vec(), Arc::clone(&lane.progress.plan));
        let source = lane.progress.source;
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(ErrorKind::Io, "take over", "not connected"));
        };
        let mut all = Taken::default();
        let taken = take_over(
            connection,
            &plan,
            (source, &key),
            ("", usize::MAX),
            &mut all,
        );
        if all.entries > 0 {
            log::info!(
                "{lane}: took over {} messages that others had not finished",
                all.entries
            );
        }
        Self::tell_of_gone(lane, &all.gone);
        lane.progress.behind = true;
        taken?;
        lane.progress.acquired = true;
        Ok(())
    }

    /// Of the retry stream: has what is due moved into it. Says when the next will be.
    pub(super) fn move_due(lane: &mut Lane<Self>) -> Result<Option<Duration>> {
        if lane.progress.source != Source::Retries || lane.reader.is_outstanding() {
            return Ok(None);
        }
        let (plan, slack) = (Arc::clone(&lane.progress.plan), lane.plan.read.slack);
        let keys = &plan.keys;
        let most = lane.plan.parking.keep.0.to_string();
        // A letter about an item that nobody can read, as far as it is the same for all of them.
        let letter = [
            ["MAXLEN", "~"],
            [&most, "*"],
            ["!", LETTER_PAIRS],
            ["!topic", &lane.context.topic],
            ["!partition", "0"],
            ["!first", "0-0"],
            ["!last", "0-0"],
            ["!attempts", "0"],
            ["!deliveries", "0"],
            ["!consumer", &lane.context.consumer],
            ["!reason", DeadLetterReason::Malformed.as_str()],
        ];
        let letter: Vec<&[u8]> = letter.as_flattened().iter().map(|t| t.as_bytes()).collect();
        let due = Due {
            bucket: keys.bucket.as_bytes(),
            items: keys.items.as_bytes(),
            letters: Some((keys.letters.as_bytes(), &letter)),
            targets: &[&keys.retries],
        };
        let Some(connection) = lane.reader.connection() else {
            return Err(Error::new(
                ErrorKind::Io,
                "move what is due",
                "not connected",
            ));
        };
        let moved = due.publish(connection, slack)?;
        if let Some(e) = moved.refused {
            return Err(e.on_key(keys.retries.as_bytes()));
        }
        for (item, why) in &moved.put_off {
            if let Some(held) = lane.progress.quiet_gone.permit() {
                log::error!(
                    "{lane}: the item {item:?} of {} cannot be moved: {why}{}",
                    keys.bucket,
                    HeldBack(held)
                );
            }
        }
        Ok(moved.next)
    }
}
