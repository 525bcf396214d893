//! The contracts of Postonce, without I/O: what an event is, which event it is,
//! and which postings its resource holds.
//!
//! The path of one message through this crate:
//!
//! 1. [`decode`](Decoder::decode): bytes become an [`Event`] or a [`Reject`],
//!    once, at the edge ([`event`], [`cloudevents`], [`json`]).
//! 2. [`identity`]: the event's id, its resource's id, its fingerprint.
//! 3. [`rules`]: which version of `positions.toml` judges it.
//! 4. [`position`]: the postings that a state holds, and the difference between two.

pub mod account;
pub mod cloudevents;
pub mod currency;
pub mod event;
pub mod facts;
pub mod identity;
pub mod json;
pub mod money;
pub mod position;
pub mod reject;
pub mod rules;
pub mod time;

pub use account::{Account, AccountPath, Accounts};
pub use event::{Decoder, Event, Header, Kinds, MAX_MESSAGE_BYTES, Message};
pub use facts::{Fact, Facts, JournalLine};
pub use identity::{AccountId, EventId, Fingerprint, ResourceId, StreamId};
pub use money::{Amount, Asset};
pub use position::{Position, PostingAmount};
pub use reject::Reject;
pub use rules::{Kind, Rules, RulesError, State, Version};
pub use time::Timestamp;

/// The rules that ship with Postonce: ten kinds of events.
pub const POSITIONS_TOML: &str = include_str!("../positions.toml");
