//! One file for each command: its flags and what it does.

pub mod generate;
mod interrupt;
mod lines;
pub mod send;
