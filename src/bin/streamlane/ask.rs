//! Nothing is destroyed before somebody has said yes.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::{
    end::{Failure, Result},
    open::Global,
};

/// Whether to go on, and what has to happen before that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Consent {
    Given,
    /// There is somebody who can be asked.
    Ask,
    /// There is nobody.
    Missing,
}

fn consent(yes: bool, terminal: bool) -> Consent {
    match (yes, terminal) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask,
        (false, false) => Consent::Missing,
    }
}

fn means_yes(answer: &str) -> bool {
    matches!(&*answer.trim().to_ascii_lowercase(), "y" | "yes")
}

/// Says what will be done and returns when that is wanted. `what` is a sentence.
pub(crate) fn before(global: &Global, what: &str) -> Result<()> {
    let mut err = io::stderr().lock();
    match consent(global.yes, io::stdin().is_terminal()) {
        Consent::Given => return Ok(()),
        Consent::Missing => {
            return Err(Failure::Unconfirmed(format!(
                "{what} Nothing was done: say --yes to do it where nobody can be asked"
            )));
        }
        Consent::Ask => {
            write!(err, "{what}\nGo on? [y/N] ")?;
            err.flush()?;
        }
    }
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if means_yes(&answer) {
        return Ok(());
    }
    Err(Failure::Unconfirmed("Nothing was done".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        assert_eq!(consent(true, true), Consent::Given);
        assert_eq!(consent(true, false), Consent::Given);
        assert_eq!(consent(false, true), Consent::Ask);
        assert_eq!(consent(false, false), Consent::Missing);
        for yes in ["y\n", "Y", " yes \n", "YES"] {
            assert!(means_yes(yes), "{yes:?}");
        }
        for no in ["", "\n", "n", "no", "ye", "yess", "ja"] {
            assert!(!means_yes(no), "{no:?}");
        }
    }
}
