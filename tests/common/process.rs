//! This test program run again, as something to kill.

use std::{
    env,
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// A process of one's own, killed on drop.
pub struct Process(pub Child);

impl Process {
    /// Runs the test called `entry` alone, with variables that tell it to be no test. Standard output is
    /// thrown away; standard input is a pipe that ends when this process does.
    pub fn start(entry: &str, vars: &[(&str, &str)]) -> Self {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", entry, "--nocapture"])
            .envs(vars.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Kills it with SIGKILL, and fails the test if it was dead already.
    #[track_caller]
    pub fn kill(mut self) {
        assert_eq!(self.ended(), None, "it lived until now");
    }

    /// Stops it (SIGSTOP); returns when it stands still.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED);
        assert!(stopped.unwrap().unwrap().1.stopped(), "it lived until now");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to end (SIGTERM).
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
