//! What can fail in a transaction. A failure is never an event's fault alone: the
//! batch is rolled back and the offset stays. (What is wrong with an event is a
//! rejection: it is recorded and the offset advances.)

use crate::decide::UnreadableState;
use crate::outcomes::OffsetGoneBack;

/// Why a batch was not committed, by what is to be done about it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Another worker was faster. Run the same batch again.
    #[error("lost a race: {0}")]
    Race(Race),
    /// Another has claimed a stream of ours. Begin a new life.
    #[error("another worker has claimed a stream of this batch, or the rules have changed")]
    FenceLost,
    /// The connection broke between COMMIT and its answer. The next claim shows
    /// how it ended. Begin a new life.
    #[error("the connection broke during COMMIT: {0}")]
    CommitUnknown(#[source] sqlx::Error),
    /// Postgres is away or cannot serve. Wait for it.
    #[error("Postgres cannot serve: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// The database refuses what one event has brought: our bug. Find that event.
    #[error("Postgres refuses a value: {0}")]
    BadData(#[source] sqlx::Error),
    /// What is in the database contradicts itself or the rules. A person must look.
    #[error("{0}")]
    Damage(String),
}

/// How a race was lost.
#[derive(Debug, thiserror::Error)]
pub enum Race {
    #[error("the row of {constraint} exists already ({detail})")]
    Unique { constraint: String, detail: String },
    #[error("{changed} of {sent} resources were still as they were read")]
    ResourceChanged { sent: usize, changed: u64 },
    #[error("{0}")]
    Serialization(String),
}

impl Failure {
    /// The names of all of them in metrics, and that of a transaction that took too long.
    pub const NAMES: [&str; 7] =
        ["race", "fence_lost", "commit_unknown", "unavailable", "bad_data", "damage", Self::TIMED_OUT];
    pub const TIMED_OUT: &str = "timed_out";

    /// Its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Race(_) => "race",
            Self::FenceLost => "fence_lost",
            Self::CommitUnknown(_) => "commit_unknown",
            Self::Unavailable(_) => "unavailable",
            Self::BadData(_) => "bad_data",
            Self::Damage(_) => "damage",
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(database) = &error else {
            return match error {
                // What the database holds is not what the migrations made.
                sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) => Self::Damage(error.to_string()),
                _ => Self::Unavailable(error),
            };
        };
        let code = database.code().unwrap_or_default().into_owned();
        match code.as_str() {
            "23505" => {
                let constraint = database.constraint().unwrap_or("an unnamed constraint").to_owned();
                let postgres = database.try_downcast_ref::<sqlx::postgres::PgDatabaseError>();
                let detail = postgres.and_then(|error| error.detail()).unwrap_or("no detail").to_owned();
                Self::Race(Race::Unique { constraint, detail })
            }
            "40001" | "40P01" => Self::Race(Race::Serialization(database.message().to_owned())),
            _ if ["22", "23", "54"].iter().any(|class| code.starts_with(class)) => Self::BadData(error),
            _ => Self::Unavailable(error),
        }
    }
}

impl Failure {
    /// An error in answer to COMMIT. Only a refusal that names a constraint or a
    /// serialisation failure proves that nothing was committed.
    pub fn of_commit(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        if code.starts_with("23") || code.starts_with("40") { Self::from(error) } else { Self::CommitUnknown(error) }
    }
}

impl From<UnreadableState> for Failure {
    fn from(error: UnreadableState) -> Self {
        Self::Damage(error.to_string())
    }
}

impl From<OffsetGoneBack> for Failure {
    fn from(error: OffsetGoneBack) -> Self {
        Self::Damage(error.to_string())
    }
}
