//! The commands of `postonce`, and the private Postgres that the demo and the
//! tests start.

pub mod args;
pub mod child_process;
pub mod cli;
pub mod commands;
pub mod demo;
pub mod log;
pub mod private_postgres;
pub mod reader;
pub mod table;
