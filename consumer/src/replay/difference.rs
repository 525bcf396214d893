//! What a ledger and the topic differ in, by name.

use crate::decide::Arrival;
use postonce_schema::Event;
use serde::Serialize;
use std::collections::BTreeMap;

/// In which way they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// An event that the ledger does not know.
    New,
    /// A known id with a content that the ledger does not know.
    Conflict,
    /// Accepted by these rules, in quarantine in the ledger.
    AcceptedNow,
    /// Refused by these rules, accepted in the ledger.
    RefusedNow,
    /// Refused, and the quarantine does not hold its bytes.
    NotInQuarantine,
    /// A message where the ledger has recorded that there is none.
    Skipped,
    /// The ledger has recorded an outcome, and the topic has no message there.
    NoMessage,
}

impl What {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Conflict => "conflict",
            Self::AcceptedNow => "accepted now",
            Self::RefusedNow => "refused now",
            Self::NotInQuarantine => "not in quarantine",
            Self::Skipped => "skipped",
            Self::NoMessage => "no message",
        }
    }
}

/// An event as people find it.
#[derive(Debug, Clone, Serialize)]
pub struct NamedEvent {
    pub event_id: String,
    #[serde(rename = "type")]
    pub type_name: String,
    pub resource: String,
    pub updated_at: String,
}

/// One message about which they differ.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    pub what: What,
    pub partition: i32,
    pub offset: i64,
    #[serde(flatten)]
    pub event: Option<NamedEvent>,
    pub detail: String,
}

impl NamedEvent {
    pub fn of(event: &Event<'_>) -> Self {
        Self {
            event_id: event.id.to_string(),
            type_name: event.type_name(),
            resource: event.resource.to_string(),
            updated_at: event.updated_at.to_string(),
        }
    }
}

/// All of them counted, the first of them kept.
#[derive(Debug, Default)]
pub struct Differences {
    pub counts: BTreeMap<What, u64>,
    pub first: Vec<Difference>,
    most: usize,
}

impl Differences {
    /// Keeps at most so many of each partition.
    pub fn at_most(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn note(&mut self, difference: Difference, times: u64) {
        *self.counts.entry(difference.what).or_default() += times;
        // Each partition comes in the order of its offsets: the first of all are among these.
        if self.first.iter().filter(|one| one.partition == difference.partition).count() < self.most {
            self.first.push(difference);
        }
    }

    pub fn of_event(&mut self, what: What, partition: i32, arrival: &Arrival<'_, '_>, detail: String) {
        let (event, offset) = (Some(NamedEvent::of(arrival.event)), arrival.message.at.offset);
        self.note(Difference { what, partition, offset, event, detail }, 1);
    }

    pub fn add(&mut self, other: Self) {
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        self.first.extend(other.first);
        self.first.sort_by_key(|one| (one.partition, one.offset));
        self.first.truncate(self.most);
    }

    pub fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}
