//! Queues: partitions read through a consumer group, whose members share the work message by message and
//! acknowledge each.
//!
//! What a member was given and has not acknowledged stays pending at the server, under its name. The lanes
//! read, hand over and acknowledge; what is pending of members that are no more is found by the [`Keeper`],
//! which makes it pending here, and the lanes read what is pending here before they read what is new. A message
//! that has to wait goes into a bucket on the server and, when it is due, into the retry stream of the
//! consumer, which has a lane of its own.

mod acks;
mod birth;
mod group;
mod hand;
mod keeper;
mod low_water;
mod origin;
mod plan;
mod reading;
mod scripts;
mod successor;
mod take;
mod trim;

pub(crate) use birth::{Birth, Mark, found, is_gone, mark_field};
pub(crate) use group::Group;
pub(crate) use keeper::{Keeper, Terms, is_ours, member_of};
pub(crate) use low_water::{GroupInfo, Reader, Standing, first_pending, groups, lowest, readers};
pub(crate) use origin::Origin;
pub(crate) use plan::{GroupKeys, GroupPlan, Lanes};
pub(crate) use trim::{How, Leave, trim, trim_oldest};
