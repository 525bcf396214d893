//! The cases that wait for a person: refused messages (quarantine), and what was accepted
//! and should be looked at (incidents). Who decides one leaves a row in `actions`, written
//! in the transaction of the change.
//!
//! Nothing here writes the ledger: a refused message comes into the books only by the
//! topic, where `retry` sends it again.

pub mod actions;
pub mod cursor;
pub mod incidents;
pub mod key;
pub mod name;
pub mod quarantine;

use crate::error::DatabaseError;

/// Why a case cannot be shown or decided.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("there is no {what} named {name}; `{list}` shows those there are, with --all-states the closed ones too")]
    NotFound { what: &'static str, name: String, list: &'static str },
    #[error("{name} names several {what}; choose one of {}", .found.join(", "))]
    Ambiguous { what: &'static str, name: String, found: Vec<String> },
    #[error("{name} is not open: {how}")]
    NotOpen { name: String, how: String },
    #[error("{0} has been changed by somebody else just now; look at it again")]
    Changed(String),
    #[error(transparent)]
    Cursor(#[from] cursor::BadCursor),
}

impl From<sqlx::Error> for CaseError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}
