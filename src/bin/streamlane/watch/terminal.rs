//! A terminal that is drawn on as a whole and listened to key by key.

use std::{
    io::{self, IsTerminal, Read, Write},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};
use streamlane::testing::now_ns;

use crate::end::Result;

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";

/// Where nobody says how large it is.
const USUAL: (usize, usize) = (80, 24);

/// The terminal of this process. As it was once this is dropped.
pub(super) struct Terminal {
    before: Termios,
}

#[expect(
    clippy::unused_self,
    reason = "it is the terminal of this process while this is there"
)]
impl Terminal {
    /// Where standard input and output are one.
    pub(super) fn open() -> Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin()).map_err(io::Error::from)?;
        let mut ours = before.clone();
        // Ctrl-C comes as a key, so that the terminal is left as it was found.
        ours.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        tcsetattr(io::stdin(), OptionalActions::Now, &ours).map_err(io::Error::from)?;
        let terminal = Self { before };
        terminal.write(ENTER)?;
        Ok(Some(terminal))
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => USUAL,
        }
    }

    /// Draws these lines over what was there.
    pub(super) fn draw(&mut self, lines: &[String]) -> Result<()> {
        let mut text = String::from(HOME);
        for (n, line) in lines.iter().enumerate() {
            // No line break behind the last one: that would move everything up.
            text += if n > 0 { "\r\n" } else { "" };
            text += line;
            text += REST_OF_LINE;
        }
        text += REST_OF_SCREEN;
        Ok(self.write(&text)?)
    }

    /// Whether somebody wants it to end; waits for so long to find out.
    pub(super) fn ended_within(&mut self, time: Duration) -> Result<bool> {
        let until = now_ns() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2);
        loop {
            let left = Duration::from_nanos(until.saturating_sub(now_ns()));
            let stdin = io::stdin();
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            let left = Timespec::try_from(left).ok();
            match poll(&mut fds, left.as_ref()) {
                // The second when the window has another size, say.
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
                Ok(_) => {}
                Err(e) => return Err(io::Error::from(e).into()),
            }
            let mut key = [0];
            if stdin.lock().read(&mut key)? == 0 || ends(key[0]) {
                return Ok(true);
            }
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // There is nobody left to tell when this fails.
        let _ = self.write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// q, Q, ctrl-c, ctrl-d.
fn ends(key: u8) -> bool {
    matches!(key, b'q' | b'Q' | 0x03 | 0x04)
}
