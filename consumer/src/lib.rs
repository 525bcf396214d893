//! From topic to ledger.

pub mod database;
pub mod error;
pub mod apply;
pub mod batch;
pub mod chain;
pub mod claim;
pub mod decide;
pub mod failure;
pub mod message;
pub mod outcomes;
pub mod rows;
pub mod store;
