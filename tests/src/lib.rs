//! Support for the tests on real parts: an Apache Kafka broker, a Postgres
//! server, and `postonce` itself as a child process that can be killed, frozen
//! and watched.
//!
//! # Running
//! ```text
//! ./setup.sh test            # once: fetches Kafka and what else is missing
//! cargo build                # the binary `postonce` that the tests start
//! cargo test -p postonce-tests                          # all of them
//! cargo test -p postonce-tests -- kill_nine             # those with this in their name
//! cargo test -p postonce-tests -- --exact parts::postgres_18_can_be_had
//! cargo test -p postonce-tests -- --list
//! ```
//! `POSTONCE_TEST_PG_BIN=target/postgres18/bin` runs them on another Postgres.
//!
//! # Writing
//! A module in `tests/tests/` offers `pub fn tests() -> Vec<Trial>` made by
//! [`trials!`], and `tests/tests/main.rs` collects them. A test is a function
//! `fn() -> anyhow::Result<()>`; it may also panic. Each test takes a topic and
//! a database of its own from [`parts`]; one that stops or kills a broker or
//! server starts its own, for the shared ones serve other tests at the same time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    reason = "in a test a panic is the report of a failure"
)]

mod auditor;
mod books;
mod certificates;
mod clock;
mod cluster;
mod compare;
mod database;
mod disk;
mod faults;
mod http;
mod kafka;
mod messages;
pub mod model;
mod network;
mod odd;
mod parts;
mod process;
mod prometheus;
mod proxy;
pub mod recovery;
mod said;
pub mod scenario;
mod secured;
mod trial;
mod wait;

pub use auditor::{Audited, Terms, audit};
pub use books::{Books, Ledger};
pub use certificates::{Authority, Identity};
pub use clock::Clock;
pub use cluster::Cluster;
pub use database::Db;
pub use disk::SmallDisk;
pub use faults::{Barrier, Consumer, Flow, QUICK, delete_before, load, payment, payments};
pub use http::{get, metric};
pub use kafka::Kafka;
pub use libtest_mimic::Trial;
pub use messages::{Message, Sender, Transaction, end_offsets, read_all};
pub use network::Network;
pub use odd::send_with_header;
pub use parts::{
    Database, kafka, postgres, postgres_18, repository, start_postgres, start_postgres_18, stop_parts, unique,
};
pub use postonce::private_postgres::{PrivatePostgres, StartOptions, free_port};
pub use process::PostonceProcess;
pub use prometheus::{Prometheus, Series};
pub use proxy::{Fault, Proxy};
pub use said::Said;
pub use secured::{PASSWORD, Secured, USER};
pub use trial::trial;
pub use wait::wait_until;
