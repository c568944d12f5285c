//! What lies on the server, byte for byte: ids, key names, identities, routing, entries, headers
//! and topic metadata. Nothing here knows of sockets or of the protocol that carries it.
//!
//! Reading borrows from the bytes it is given and never trusts a length in them; writing fills
//! buffers of the caller.

mod claim;
pub(crate) mod decimal;
mod entry;
mod headers;
mod id;
mod identity;
mod key_table;
mod keys;
mod letter;
mod payload;
mod position_value;
mod route;
pub(crate) mod topic;
mod trace;

pub(crate) use claim::{Claimant, PRESENCE};
pub use entry::Malformed;
pub(crate) use entry::{Entry, Field, REFERENCE};
pub(crate) use headers::{ATTEMPTS_MAX, max_attempts, pack, pack_one};
pub use headers::{HeaderIter, Headers};
pub(crate) use id::ID_MAX;
pub use id::StreamId;
pub(crate) use identity::{InstanceId, client_name, pod_name};
pub(crate) use key_table::{KeyName, KeyRow, KeyUse, Owner};
pub use key_table::{keys_of, keys_table};
pub(crate) use keys::{
    Keys, check_consumer, check_scope, check_topic, escaped, hash_tag, position_owner,
};
pub use letter::DeadLetterReason;
pub(crate) use letter::{FIRST_ID, Letter, MOST_FIELDS, PAYLOAD_MISSING, ReadLetter};
pub(crate) use payload::{REFERENCE_MAX, Reference};
pub(crate) use position_value::{ORDINAL_MAX, Ordinal, POSITION_MAX, PositionValue, ResetMarker};
pub(crate) use route::{RoundRobin, XXH3, hash_of, partition_of, partition_of_hash};
pub use trace::Traceparent;
