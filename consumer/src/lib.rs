//! From topic to ledger.
//!
//! The path of the data, one file for each step:
//!
//! ```text
//! stream     what the group assigns, what is waiting
//! message    one Kafka message, and the outcomes it can have
//! batch      bytes become events or rejections; how far each stream comes
//! decide     resource state and postings, in memory
//! apply      the one transaction, step by step
//! store      its SQL; rows and chain are its bytes
//! life       the loop around it: poll, apply, again
//! trouble    what to do with a batch that was rolled back
//! worker     what happens when a life fails
//! ```
//!
//! Beside it: `accept` (what a person goes on in spite of), `observer` (what the brokers
//! say when they are asked), `claim` (who may advance a stream), `registry` (frozen rules),
//! `topic` (which lineage), `retention` (how far the topic reaches back), `clock` (one that
//! was set back), `consume` (the process), `health` and `metrics` (what it tells; from
//! `unposted`, `turnover`, `distance`, `kafka_statistics`, `ledger_gauges` and `sockets`),
//! `heard` (why there is no broker), `read` (what people ask the ledger), `cases` (what waits
//! for a person), `reread` and `replay`
//! (the topic again), `rebuild` (the ledger again), `verify` (whether the books are right),
//! `digest` and `checkpoint` (the books in one hash).

pub mod accept;
pub mod account_postings;
pub mod apply;
pub mod batch;
pub mod cases;
pub mod chain;
pub mod checkpoint;
pub mod claim;
pub mod clock;
pub mod config;
pub mod consume;
pub mod database;
pub mod decide;
pub mod digest;
pub mod distance;
pub mod error;
pub mod failure;
pub mod health;
pub mod heard;
pub mod kafka_statistics;
pub mod ledger_gauges;
pub mod life;
pub mod message;
pub mod metrics;
pub mod observer;
mod offsets;
pub mod outcomes;
pub mod read;
pub mod rebuild;
pub mod registry;
pub mod replay;
pub mod reread;
pub mod retention;
pub mod rows;
mod sockets;
pub mod stop;
pub mod store;
pub mod stream;
pub mod topic;
mod trace_context;
mod trouble;
pub mod turnover;
pub mod unposted;
pub mod verify;
pub mod worker;
