//! One file for each command: its flags and what it does.

pub mod balances;
pub mod consume;
pub mod generate;
pub mod id;
mod interrupt;
mod lines;
pub mod migrate;
pub mod send;
pub mod statement;
pub mod status;
pub mod trace;
