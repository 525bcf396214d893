//! The whole topic again into another schema, by the real transaction, and then the two
//! ledgers compared by what they say.
//!
//! ```text
//! schema     a schema of its own in the same database, and its end
//! run        the topic into it, under the same lineage, to where the live ledger stands
//! merge      both sides in the order of their keys, read once
//! rows       what is compared: known events, resources, postings, balances
//! outcomes   and the outcome of every offset
//! compare    what differs, and what follows from what
//! finding    how it is told
//! ```
//!
//! The live ledger is only read, in one snapshot, and the rebuilt one is brought to exactly
//! the offsets of that snapshot: so the consumers may go on meanwhile. What may differ with
//! the order of arrival is not compared: which of two contents came first, which steps were
//! posted, revisions, borders of batches.

mod compare;
mod finding;
mod merge;
mod outcomes;
mod rows;
mod run;
mod schema;

pub use compare::Compared;
pub use finding::{Finding, Findings, What};
pub use outcomes::Judged;
pub use rows::Balance;
pub use run::{AccountChange, Progress, Rebuild, Report, WhatIf, rebuild};
