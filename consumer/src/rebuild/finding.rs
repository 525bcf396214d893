//! What two ledgers differ in, by name.

use serde::Serialize;
use std::collections::BTreeMap;

/// In which way they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The live ledger knows an event that its topic does not bring.
    EventOnlyLive,
    /// The topic brings an event that the live ledger does not know.
    EventOnlyRebuilt,
    Resource,
    /// The net of a resource's postings between two accounts.
    Postings,
    Balance,
    /// The hash of the messages.
    MessageChain,
    /// A message where the live ledger has recorded none.
    Skipped,
    /// The live ledger has recorded an outcome, and the topic has no message there.
    NoMessage,
    /// Accepted live, refused by the rules now.
    RefusedNow,
    /// In quarantine live, accepted by the rules now.
    AcceptedNow,
    /// As before, and the live ledger knows the event: from a copy that was sent again.
    AcceptedCopy,
    /// As before, and a person has dismissed it.
    Dismissed,
    /// Only live, from before where the log begins now.
    BeforeLogStart,
    /// Only live, from what was not read again: another topic, an older lineage, a replay.
    Elsewhere,
    /// A resource, postings or a balance that differ only by what one of those has brought.
    Follows,
}

impl What {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::EventOnlyLive => "event only live",
            Self::EventOnlyRebuilt => "event not known live",
            Self::Resource => "resource",
            Self::Postings => "postings",
            Self::Balance => "balance",
            Self::MessageChain => "message chain",
            Self::Skipped => "skipped live",
            Self::NoMessage => "no message in the topic",
            Self::RefusedNow => "accepted live, refused now",
            Self::AcceptedNow => "accepted now, in quarantine live",
            Self::AcceptedCopy => "accepted now, known live by a copy",
            Self::Dismissed => "accepted now, dismissed live",
            Self::BeforeLogStart => "only live, before the log's start",
            Self::Elsewhere => "only live, from another topic, lineage or replay",
            Self::Follows => "follows from one of these",
        }
    }

    /// The books do not say what the topic says. The others are explained: by what a person
    /// has decided, by what the topic does not hold any more, or by what was not read.
    pub fn is_difference(self) -> bool {
        use What::{AcceptedCopy, BeforeLogStart, Dismissed, Elsewhere, Follows};
        !matches!(self, AcceptedCopy | Dismissed | BeforeLogStart | Elsewhere | Follows)
    }
}

/// One difference.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Finding {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// One, or two of a posting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rebuilt: Option<String>,
}

/// All of them counted, the first of each kind kept.
#[derive(Debug, Default)]
pub struct Findings {
    pub counts: BTreeMap<What, u64>,
    pub first: BTreeMap<What, Vec<Finding>>,
    most: usize,
}

impl Findings {
    pub fn at_most(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn count(&mut self, what: What, times: u64) {
        if times > 0 {
            *self.counts.entry(what).or_default() += times;
        }
    }

    /// Counts it; whether it is among the first, which are named.
    pub fn is_named(&mut self, what: What) -> bool {
        self.count(what, 1);
        self.counts.get(&what).is_some_and(|count| usize::try_from(*count).is_ok_and(|count| count <= self.most))
    }

    pub fn name(&mut self, what: What, finding: Finding) {
        self.first.entry(what).or_default().push(finding);
    }

    /// How many of them say that the books are not those of the topic.
    pub fn differences(&self) -> u64 {
        self.counts.iter().filter(|(what, _)| what.is_difference()).map(|(_, count)| count).sum()
    }
}
