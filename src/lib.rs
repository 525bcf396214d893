//! The commands of `postonce`, and the private Postgres that the demo and the
//! tests start.

pub mod args;
pub mod cases;
pub mod child_process;
pub mod cli;
pub mod commands;
pub mod confirm;
pub mod demo;
pub mod log;
pub mod payload;
pub mod person;
pub mod private_postgres;
mod progress;
pub mod reader;
mod remedy;
mod reread;
pub mod settings;
pub mod table;
