//! `streamlane publish`: one message, or one a line.

use std::{
    io::{self, BufRead, Read},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use serde::Serialize;
use streamlane::{Outgoing, Publisher};

use crate::{
    demo::grouped,
    end::{End, Failure, Result},
    known,
    open::Global,
    out::{Out, shown},
    place::{date, duration},
    stderr::with_progress,
};

/// So many lines are published in one round trip.
const AT_ONCE: usize = 512;

/// Publish a message, or one for each line of standard input
///
/// The body is the argument, or all of standard input. With --lines each line is
/// a message; with --keyed each line is a key, a tab and a body. What was
/// published is told by its id.
///
///   streamlane publish orders --type OrderPlaced --key customer-7 '{"id":1}'
///   streamlane publish orders --type OrderPlaced < order.json
///   streamlane publish ticks --type Tick --keyed < ticks.tsv
///   streamlane publish orders --type Reminder --delay 10m '{"id":1}'
///
/// With --json each message is an object with "id", or for a message with a
/// delay one with "delayed" and "due".
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Publish {
    /// The topic
    topic: String,

    /// The body; without it, standard input
    #[arg(conflicts_with_all = ["lines", "keyed"])]
    body: Option<String>,

    /// What kind of message it is
    #[arg(long = "type", value_name = "TYPE")]
    message_type: String,

    /// Messages of one key are handled in order
    #[arg(long)]
    key: Option<String>,

    /// A header; may be given more than once
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,

    /// What ties messages together that belong to one doing
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,

    /// The partition, instead of that of the key
    #[arg(long, value_name = "N")]
    partition: Option<u32>,

    /// Each line is a body
    #[arg(long)]
    lines: bool,

    /// Each line is a key, a tab and a body
    #[arg(long, conflicts_with_all = ["lines", "key"])]
    keyed: bool,

    /// Publish it only after so long, such as 10m
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["lines", "keyed"])]
    delay: Option<Duration>,

    /// Make the topic if there is none
    #[arg(long)]
    create: bool,
}

#[derive(Serialize)]
struct Stored {
    id: String,
}

#[derive(Serialize)]
struct Waits {
    delayed: String,
    due: String,
}

impl Publish {
    pub(crate) fn run(&self, global: &Global) -> Result {
        let streams = global.open()?;
        if !self.create && known::partitions(&streams, &self.topic, global.timeout)?.is_none() {
            return Err(Failure::failed(format!(
                "there is no topic {:?}: say --create to make it",
                self.topic
            )));
        }
        let publisher = streams.publisher(&self.topic)?;
        let mut out = Out::of(global);
        let end = if self.lines || self.keyed {
            self.each_line(&publisher, &mut out)?
        } else {
            self.one(&publisher, &mut out)?;
            End::Done
        };
        out.flush()?;
        Ok(end)
    }

    fn one(&self, publisher: &Publisher, out: &mut Out) -> Result<()> {
        let mut body = Vec::new();
        if let Some(text) = &self.body {
            body.extend_from_slice(text.as_bytes());
        } else {
            io::stdin().lock().read_to_end(&mut body)?;
        }
        let message = self.message(&body, self.key.as_deref().unwrap_or_default().as_bytes());
        let Some(delay) = self.delay else {
            let mut published = publisher.publish_batch(&[message]);
            let id = published
                .pop()
                .ok_or_else(|| Failure::failed("no answer"))??;
            return out.show(&Stored { id: id.to_string() }, |s| s.id.clone());
        };
        let mut draft = publisher.message(&*self.message_type, &body);
        if let Some(key) = &self.key {
            draft = draft.key(key);
        }
        for (name, value) in &self.headers {
            draft = draft.header(name, value);
        }
        if let Some(id) = &self.correlation_id {
            draft = draft.correlation_id(id);
        }
        if let Some(partition) = self.partition {
            draft = draft.partition(partition);
        }
        let delayed = draft.deliver_after(delay).publish()?;
        let due: SystemTime = delayed.due();
        let waits = Waits {
            delayed: delayed.to_string(),
            due: date(due),
        };
        out.show(&waits, |w| format!("{}  due {}", w.delayed, w.due))
    }

    fn message<'a>(&'a self, body: &'a [u8], key: &'a [u8]) -> Outgoing<'a> {
        let mut message = Outgoing::new(&*self.message_type, body);
        if !key.is_empty() {
            message = message.key(key);
        }
        for (name, value) in &self.headers {
            message = message.header(name, value);
        }
        if let Some(id) = &self.correlation_id {
            message = message.correlation_id(id);
        }
        match self.partition {
            Some(partition) => message.partition(partition),
            None => message,
        }
    }

    fn each_line(&self, publisher: &Publisher, out: &mut Out) -> Result {
        let (published, mut line) = (AtomicU64::new(0), 0);
        let mut input = io::stdin().lock();
        let progress = || format!("published {}", grouped(published.load(Relaxed)));
        with_progress(progress, || -> Result {
            loop {
                let lines = chunk(&mut input)?;
                if lines.is_empty() {
                    return Ok(End::Done);
                }
                let messages = (line + 1..)
                    .zip(&lines)
                    .map(|(n, text)| self.of_line(n, text));
                let messages = messages.collect::<Result<Vec<_>>>()?;
                for result in publisher.publish_batch(&messages) {
                    line += 1;
                    let id = result.map_err(|e| {
                        Failure::failed(format!(
                            "line {line}: {e}; {} were published before it, and lines up to {} may have been",
                            published.load(Relaxed),
                            line + lines.len() as u64 - 1,
                        ))
                    })?;
                    published.fetch_add(1, Relaxed);
                    out.show(&Stored { id: id.to_string() }, |s| s.id.clone())?;
                }
            }
        })?
    }

    fn of_line<'a>(&'a self, n: u64, line: &'a [u8]) -> Result<Outgoing<'a>> {
        if !self.keyed {
            let key = self.key.as_deref().unwrap_or_default();
            return Ok(self.message(line, key.as_bytes()));
        }
        let Some(tab) = line.iter().position(|b| *b == b'\t') else {
            let text = crate::out::cut(&shown(line), 40);
            return Err(Failure::usage(format!(
                "line {n} has no tab behind its key: {text}"
            )));
        };
        Ok(self.message(&line[tab + 1..], &line[..tab]))
    }
}

/// The next lines, without what ends them; none when there are no more. Those of one chunk are published together.
fn chunk(input: &mut impl BufRead) -> io::Result<Vec<Vec<u8>>> {
    let mut lines = Vec::new();
    while lines.len() < AT_ONCE {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        for end in [b'\n', b'\r'] {
            if line.last() == Some(&end) {
                line.pop();
            }
        }
        lines.push(line);
    }
    Ok(lines)
}

/// A name, an equals sign, and a value.
pub(crate) fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_as_they_are_but_for_their_ends() {
        let mut input = &b"a\n\n b \r\nlast"[..];
        let lines = chunk(&mut input).unwrap();
        assert_eq!(lines, [&b"a"[..], b"", b" b ", b"last"]);
        assert!(chunk(&mut input).unwrap().is_empty());
        let many = "x\n".repeat(AT_ONCE + 1);
        let mut input = many.as_bytes();
        assert_eq!(chunk(&mut input).unwrap().len(), AT_ONCE);
        assert_eq!(chunk(&mut input).unwrap().len(), 1);
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(pair("a").is_err());
    }
}
