//! Reads the topic again through the same code, and says whether the ledger knows
//! all of it.
//!
//! ```text
//! plan      which offsets, from where the log begins to where the live ledger stands
//! crew      the threads that share the partitions out
//! judge     one stretch of a partition: what the topic says against what the ledger says
//! dry_run   only reads, in one snapshot for each stretch
//! execute   runs the real transaction, under a lineage of its own
//! post      the loop around that transaction, which `rebuild` shares
//! run       from the plan to the report
//! ```
//!
//! The ledger only ever learns. So what the live consumers commit while a replay runs
//! cannot make an event unknown that was known before, and the answer stays exact
//! beside them.

pub(crate) mod crew;
mod difference;
mod dry_run;
mod execute;
mod judge;
pub(crate) mod plan;
pub(crate) mod post;
mod run;

pub use difference::{Difference, Differences, NamedEvent, What};
pub use plan::{Live, Place, Plan, Span};
pub(crate) use run::same_topic;
pub use run::{Books, Counts, Progress, Replay, Report, replay};

use crate::digest::DigestError;
use crate::error::DatabaseError;
use crate::failure::Failure;
use crate::registry::RulesRefused;
use crate::reread::RereadError;
use crate::stop::Stop;
use std::time::Duration;

/// How often somebody is asked whether work that nobody can see into shall go on.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Why a topic could not be run again to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("stopped by a signal")]
    Interrupted,
    #[error(transparent)]
    Stop(#[from] Stop),
    #[error(transparent)]
    Reread(#[from] RereadError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("{0}")]
    Failure(#[from] Failure),
    #[error(transparent)]
    Digest(#[from] DigestError),
    #[error(
        "the ledger has read nothing of topic {topic} (id {topic_id}, cluster {cluster_id}), so there is no place \
         where it stands{known}; to look at a topic made anew or a mirror all the same, say --to end"
    )]
    NothingRead { topic: String, topic_id: String, cluster_id: String, known: String },
    #[error("topic {0} was deleted and made again while it was read: nothing can be said of it; run it again")]
    TopicChanged(String),
    #[error("{0}")]
    Start(String),
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, ReplayError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| ReplayError::Start(format!("no async runtime: {error}")))
}

/// Work to its end, or until somebody wants no more of it.
pub(crate) async fn unless_stopped<T>(
    work: impl Future<Output = Result<T, ReplayError>>,
    go_on: impl Fn() -> bool,
) -> Result<T, ReplayError> {
    let stopped = async {
        while go_on() {
            tokio::time::sleep(WATCH_EVERY).await;
        }
    };
    tokio::select! {
        done = work => done,
        () = stopped => Err(ReplayError::Interrupted),
    }
}

impl From<RulesRefused> for ReplayError {
    fn from(refused: RulesRefused) -> Self {
        match refused {
            RulesRefused::Failure(failure) => Self::Failure(failure),
            refused => Self::Stop(refused.into()),
        }
    }
}

impl From<sqlx::Error> for ReplayError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}
