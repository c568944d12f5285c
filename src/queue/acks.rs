//! What is finished and not acknowledged yet.

use crate::{
    Result, StreamId,
    error::{Error, ErrorKind},
    net::{resp, script::Form},
    wire::ID_MAX,
};

use super::{
    plan::{GroupPlan, Source},
    scripts::ACK,
};

/// What a lane owes the server: acknowledgements of what is finished here. They are owed until the server has
/// answered, for what is finished is not to be handled here again.
#[derive(Debug, Default)]
pub(super) struct Debts {
    ids: Vec<StreamId>,
    /// How many of them the question that is on its way is about.
    asked: usize,
}

/// Acknowledgements that were refused, since the entries are not ours any more.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Late {
    pub(super) many: u64,
    pub(super) first: Option<StreamId>,
}

impl Debts {
    pub(super) fn add(&mut self, id: StreamId) {
        self.ids.push(id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether an answer about them is on its way.
    pub(super) fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// No answer comes any more.
    pub(super) fn unasked(&mut self) {
        self.asked = 0;
    }

    /// Renders the acknowledgement of all of them.
    pub(super) fn render(
        &mut self,
        plan: &GroupPlan,
        form: Form,
        out: &mut Vec<u8>,
        of: (Source, &[u8]),
    ) {
        self.ids.sort_unstable(); // as they mostly are
        plan.begin((&ACK, form), out, of, &[], self.ids.len());
        for id in &self.ids {
            resp::arg(out, id.encode(&mut [0; ID_MAX]));
        }
        self.asked = self.ids.len();
    }

    /// Takes in what the server has answered. Says how many were not ours any more, and the first of them.
    pub(super) fn settle(&mut self, answer: &[u8]) -> Result<Late> {
        if answer.len() != self.asked || answer.iter().any(|b| !b"dx".contains(b)) {
            let what = "the answer is none of the script's";
            return Err(Error::new(ErrorKind::Protocol, "acknowledge", what));
        }
        let late = || {
            answer
                .iter()
                .zip(&self.ids)
                .filter(|(letter, _)| **letter == b'x')
        };
        let found = Late {
            many: late().count() as u64,
            first: late().next().map(|(_, id)| *id),
        };
        self.ids.drain(..self.asked);
        self.asked = 0;
        Ok(found)
    }

    /// They are not owed any more.
    pub(super) fn forget(&mut self) -> Vec<StreamId> {
        self.asked = 0;
        std::mem::take(&mut self.ids)
    }
}
