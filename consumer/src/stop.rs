//! Why a consumer stops and waits for a person, each with an exit code of its own.

use crate::claim::Lineage;
use crate::error::DatabaseError;
use crate::registry::RulesRefused;
use crate::topic::TopicError;

/// Going on by itself could lose or double money, or cannot succeed.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    #[error(transparent)]
    LineageChanged(Box<LineageChanged>),
    #[error(
        "partition {partition} of topic {topic} begins at offset {log_start}, but the ledger goes on at {next_offset}: \
         offsets {next_offset} to {} were deleted before they were read. Restore them from a mirror of the topic, \
         and let retention outlast every outage",
        .log_start - 1
    )]
    Gap { topic: String, partition: i32, next_offset: i64, log_start: i64 },
    #[error(
        "partition {partition} of topic {topic} ends at offset {log_end}, but the ledger goes on at {next_offset}: \
         the log has lost messages that are posted (an unclean leader election, or a broker restored from a backup)"
    )]
    AheadOfLog { topic: String, partition: i32, next_offset: i64, log_end: i64 },
    #[error(transparent)]
    Rules(#[from] RulesRefused),
    #[error("the ledger contradicts itself, and no retry can help: {0}")]
    Damage(String),
    #[error("offset {next_offset} of partition {partition} cannot be read, three times in a row: {why}")]
    Unreadable { partition: i32, next_offset: i64, why: String },
    #[error(transparent)]
    Topic(#[from] TopicError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Config(#[from] crate::config::FixedProperty),
    #[error("the Kafka client cannot go on: {0}")]
    Kafka(String),
    #[error("{0}")]
    Start(String),
}

impl Stop {
    /// The exit code of the process. 1 is any other error, 2 wrong usage.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::LineageChanged(_) => 10,
            Self::Gap { .. } => 11,
            Self::AheadOfLog { .. } => 12,
            Self::Rules(_) => 13,
            Self::Damage(_) => 14,
            Self::Unreadable { .. } => 15,
            _ => 1,
        }
    }
}

/// The topic's offsets are not those that the ledger has read.
#[derive(Debug, thiserror::Error)]
#[error(
    "topic {} on cluster {} has id {}, but this ledger has read {offsets} offsets of a topic of that name on cluster \
     {} with id {}. It was deleted and made again, or this is another cluster: its offsets mean other messages. \
     Point the consumer at the topic of the ledger, or give the new one another name",
    .now.topic, .now.cluster_id, .now.topic_id, .known.cluster_id, .known.topic_id
)]
pub struct LineageChanged {
    pub now: Lineage,
    pub known: Lineage,
    pub offsets: i64,
}
