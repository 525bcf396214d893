//! What names one row.

use crate::chain::{Hash, hex};

/// Names an incident.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct IncidentKey {
    pub stream: i64,
    pub offset: i64,
    pub code: String,
}

/// Names a refused message. It may have been refused under several codes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, sqlx::FromRow)]
pub struct MessageKey {
    pub hash: Hash,
    pub code: String,
}

impl MessageKey {
    /// The hash as people write it.
    pub fn id(&self) -> String {
        hex::text(&self.hash)
    }
}
