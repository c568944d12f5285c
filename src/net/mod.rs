//! Sockets, RESP and the connections made of them. Knows nothing of topics or streams.
//!
//! Every wait in here ends at a stated moment and can be cut short by an [`Interrupt`]. The pieces,
//! from the outside in: a [`Target`] says where to connect and as whom; [`Connection::dial`] waits
//! its turn at the endpoint's [`gate`], has the name looked up by the [`resolver`], connects a
//! [`Socket`] and runs the [`handshake`] on it.

mod background;
mod connection;
mod deadline;
mod gate;
mod handshake;
mod inbox;
mod interrupt;
mod known;
mod replies;
mod resolver;
pub(crate) mod resp;
pub(crate) mod script;
mod skim;
mod socket;
mod target;

use std::time::{Duration, Instant};

pub(crate) use background::Background;
pub(crate) use connection::{Connection, Duplex};
pub(crate) use deadline::Deadline;
pub(crate) use gate::Gate;
pub(crate) use inbox::Inbox;
pub(crate) use interrupt::{Interrupt, STOP};
pub use known::ServerTrouble;
pub(crate) use skim::Skim;
pub(crate) use target::{Secret, Target};

use crate::clock;

/// The moment `time` from now; a time too long to add is a year.
pub(crate) fn after(time: Duration) -> Instant {
    let now = clock::now();
    now.checked_add(time)
        .unwrap_or_else(|| now + Duration::from_hours(365 * 24))
}
