//! One file for each command: its flags and what it does.

pub mod balances;
pub mod checkpoint;
pub mod config;
pub mod consume;
pub mod demo;
pub mod export;
pub mod generate;
pub mod health;
pub mod id;
pub mod incidents;
pub mod interrupt;
mod lines;
pub mod migrate;
pub mod quarantine;
pub mod rebuild;
pub mod replay;
pub mod send;
pub mod statement;
pub mod status;
pub mod top;
pub mod trace;
pub mod verify;
