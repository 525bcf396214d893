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
         offsets {next_offset} to {} were deleted before they were read. Send their events again if anybody still has \
         them (a copy moves nothing twice), and go on without these offsets by `--accept-gap \
         {partition}:{next_offset}-{}`: they are written down as lost. (A greater end accepts what retention deletes \
         meanwhile.) Let retention outlast every outage",
        .log_start - 1, .log_start - 1
    )]
    Gap { topic: String, partition: i32, next_offset: i64, log_start: i64 },
    #[error(
        "partition {partition} of topic {topic} ends at offset {log_end}, but the ledger goes on at {next_offset}: \
         the log has lost messages that are posted (an unclean leader election, or a broker restored from a backup). \
         {COPY_THE_TOPIC}"
    )]
    AheadOfLog { topic: String, partition: i32, next_offset: i64, log_end: i64 },
    #[error(
        "partition {partition} of topic {topic} was cut off before offset {next_offset}, where the ledger goes on: what \
         stands there now was never read, and the log has lost messages that are posted (an unclean leader election). \
         {COPY_THE_TOPIC}. Kafka says: {words}"
    )]
    CutOff { topic: String, partition: i32, next_offset: i64, words: String },
    #[error(transparent)]
    Rules(#[from] RulesRefused),
    #[error("the ledger contradicts itself, and no retry can help: {0}")]
    Damage(String),
    #[error(
        "topic {topic} cannot be read, three times in a row at the same place: {words}. The ledger goes on at {places}. \
         Nothing is skipped: restore that segment of the log from another replica or from a backup, and start again"
    )]
    Unreadable { topic: String, places: String, words: String },
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

/// The offsets of such a log mean other messages, so nobody can go on in it.
const COPY_THE_TOPIC: &str = "Nothing that was posted is wrong. To read what came since, copy the topic into a new one \
    and consume that from its start: what is posted already comes as duplicates";

impl Stop {
    /// What a person is needed for; `None` where a restart may help.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::LineageChanged(_) => Some(Reason::Lineage),
            Self::Gap { .. } => Some(Reason::Gap),
            Self::AheadOfLog { .. } => Some(Reason::AheadOfLog),
            Self::CutOff { .. } => Some(Reason::CutOff),
            // The rules could not be compared: Postgres was away.
            Self::Rules(RulesRefused::Failure(_)) => None,
            Self::Rules(_) => Some(Reason::Rules),
            Self::Damage(_) => Some(Reason::Damage),
            Self::Unreadable { .. } => Some(Reason::Unreadable),
            Self::Topic(_) | Self::Database(_) | Self::Config(_) | Self::Kafka(_) | Self::Start(_) => None,
        }
    }

    /// The exit code of the process. 1 is any other error, 2 wrong usage.
    pub fn exit_code(&self) -> u8 {
        self.reason().map_or(1, Reason::exit_code)
    }
}

/// What a person is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Lineage,
    Gap,
    AheadOfLog,
    CutOff,
    Rules,
    Damage,
    Unreadable,
}

impl Reason {
    pub const ALL: [Self; 7] =
        [Self::Lineage, Self::Gap, Self::AheadOfLog, Self::CutOff, Self::Rules, Self::Damage, Self::Unreadable];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lineage => "lineage",
            Self::Gap => "gap",
            Self::AheadOfLog => "ahead_of_log",
            Self::CutOff => "cut_off",
            Self::Rules => "rules",
            Self::Damage => "damage",
            Self::Unreadable => "unreadable",
        }
    }

    pub fn exit_code(self) -> u8 {
        match self {
            Self::Lineage => 10,
            Self::Gap => 11,
            Self::AheadOfLog | Self::CutOff => 12,
            Self::Rules => 13,
            Self::Damage => 14,
            Self::Unreadable => 15,
        }
    }
}

/// The topic's offsets are not those that the ledger has read.
#[derive(Debug, thiserror::Error)]
#[error(
    "topic {} on cluster {} has id {}, but this ledger has read {offsets} offsets of a topic of that name on cluster \
     {} with id {}. It was deleted and made again, or this is another cluster: its offsets mean other messages. \
     Point the consumer at the topic of the ledger, or go on with this one from its first message by \
     `--accept-lineage {}`: what is posted already comes as duplicates, and what was unread in the other one is not \
     read any more{}",
    .now.topic, .now.cluster_id, .now.topic_id, .known.cluster_id, .known.topic_id, .now.topic_id, wrong(accepted)
)]
pub struct LineageChanged {
    pub now: Lineage,
    pub known: Lineage,
    pub offsets: i64,
    /// The id that a person has accepted, which is another.
    pub accepted: Option<String>,
}

fn wrong(accepted: &Option<String>) -> String {
    accepted.as_ref().map_or_else(String::new, |id| format!(". (--accept-lineage {id} is not this topic)"))
}
