//! Looking through the keys of a server: only when somebody asks for it, in small steps, and with pauses between
//! them that are as long as the steps took, so that the server has at least half of its time for others.

use std::time::Duration;

use crate::{
    Result, clock,
    net::{Connection, Interrupt},
};

/// How many keys one step looks at.
const STEP: u32 = 1000;
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Hands the keys that match a pattern to `take`, step by step; a key that is there all the time comes at least
/// once. Each round trip takes up to `timeout`.
pub(super) fn sweep(
    c: &mut Connection,
    pattern: &str,
    timeout: Duration,
    mut take: impl FnMut(&mut Connection, Vec<Vec<u8>>) -> Result<()>,
) -> Result<()> {
    let pause = Interrupt::default();
    let mut cursor = String::from("0");
    loop {
        let began = clock::now();
        let mut cmd = redis::cmd("SCAN");
        cmd.arg(&cursor).arg("MATCH").arg(pattern);
        cmd.arg("COUNT").arg(STEP);
        let (next, keys): (String, Vec<Vec<u8>>) = c.ask(&cmd, timeout)?;
        let took = began.elapsed().min(LONGEST_PAUSE);
        if !keys.is_empty() {
            take(c, keys)?;
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
        pause.sleep(took, 0);
    }
}
