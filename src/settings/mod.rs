//! What a user may set: plain structs, each key declared once; loading, checking and showing them.

#[macro_use]
mod key;

mod bind;
mod check;
mod codec;
mod consumer;
mod foreign;
mod load;
mod problem;
mod producer;
mod root;
mod secret;
mod show;
mod source;
mod topic;

pub use consumer::{
    AckDelete, ConsumerSettings, Delivery, Instances, OnError, Persist, PositionAhead, ReadMode,
    StartFrom,
};
pub use producer::ProducerSettings;
pub use root::Settings;
pub use secret::{ConnectionString, Secret};
pub use show::settings_table;
pub use topic::{TopicSettings, Trim};
