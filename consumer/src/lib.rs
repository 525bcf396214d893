//! From topic to ledger.

pub mod database;
pub mod error;
