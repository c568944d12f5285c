//! A real server, seen through one that bends what it says.

use std::time::Duration;

use streamlane::testing::{Answer, Client, PrivateServer, Reply, Stub};

/// Says what `server` says, but for those commands of which `bend` makes something else. Reads that would wait
/// wait here.
pub(super) fn front(
    server: &PrivateServer,
    mut bend: impl FnMut(&[Vec<u8>], &mut Client) -> Option<Answer> + Send + 'static,
) -> Stub {
    let mut client = server.client().unwrap();
    let script = move |args: &[Vec<u8>], _| {
        if let Some(bent) = bend(args, &mut client) {
            return bent;
        }
        match &*args[0].to_ascii_uppercase() {
            b"HELLO" | b"CLIENT" | b"QUIT" => Answer::Usual,
            _ => say(&mut client, args),
        }
    };
    Stub::start(script).unwrap()
}

/// What the server says to a command, after its wait when there was nothing to read.
fn say(client: &mut Client, args: &[Vec<u8>]) -> Answer {
    let (wait, asked) = without_wait(args);
    match (forward(client, &asked), wait) {
        (Reply::Nil, Some(wait)) => Answer::Delay(wait, b"*-1\r\n".to_vec()),
        (Reply::Nil, None) => Answer::Bytes(b"*-1\r\n".to_vec()),
        (reply, _) => Answer::Reply(reply),
    }
}

/// What the server says to a command, errors included.
pub(super) fn forward(client: &mut Client, args: &[Vec<u8>]) -> Reply {
    client.send(args).unwrap();
    client.receive().unwrap()
}

/// A read without its `BLOCK`, and how long that was.
pub(super) fn without_wait(args: &[Vec<u8>]) -> (Option<Duration>, Vec<Vec<u8>>) {
    let mut args = args.to_vec();
    let is_read = args[0].to_ascii_uppercase().starts_with(b"XREAD");
    let at = args
        .iter()
        .position(|a| is_read && a.eq_ignore_ascii_case(b"BLOCK"));
    let wait = at.map(|at| {
        let ms = String::from_utf8_lossy(&args[at + 1]).parse().unwrap();
        args.drain(at..at + 2);
        Duration::from_millis(ms)
    });
    (wait, args)
}

/// Whether a command is this one.
pub(super) fn is(args: &[Vec<u8>], name: &str) -> bool {
    args[0].eq_ignore_ascii_case(name.as_bytes())
}

/// Whether a word occurs among the arguments.
pub(super) fn has(args: &[Vec<u8>], word: &str) -> bool {
    args.iter().any(|a| a == word.as_bytes())
}
