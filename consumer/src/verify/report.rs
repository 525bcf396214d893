//! What a verification says: each check, how much it compared, and what it found by
//! account, resource, event and offset.

pub use super::against::{Against, Proved};
use crate::chain::Hash;
use crate::read::When;
use postonce_schema::{AccountId, EventId, ResourceId};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use uuid::Uuid;

/// Of each check so many findings are listed, the rest is counted.
pub const LISTED: usize = 100;

/// One thing that must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    Offsets,
    BatchChain,
    Outcomes,
    Postings,
    Events,
    Resources,
    Trace,
    Positions,
    Balances,
    Accounts,
    AccountPostings,
    TrialBalance,
    Quarantine,
    Since,
    Topic,
    Checkpoint,
}

/// One thing that does not hold, and where.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Finding {
    pub what: String,
    #[serde(skip)]
    pub account_id: Option<AccountId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asset: Option<String>,
    #[serde(skip)]
    pub resource_id: Option<ResourceId>,
    /// kind and path
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "event")]
    pub event: Option<EventId>,
    #[serde(skip)]
    pub at: Option<(i64, i64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// A check with what it compared and found.
#[derive(Clone, Debug, Serialize)]
pub struct Checked {
    pub check: &'static str,
    pub what: &'static str,
    pub compared: u64,
    /// All of them; `first` lists at most 100.
    pub findings: u64,
    pub first: Vec<Finding>,
}

/// Offsets that retention had deleted, and that a person has accepted as lost.
#[derive(Clone, Debug, Serialize)]
pub struct Gap {
    #[serde(skip)]
    pub stream: i64,
    pub topic: String,
    pub partition: i32,
    pub from_offset: i64,
    /// Exclusive.
    pub next_offset: i64,
    /// Who has accepted it and when, by `actions`.
    pub accepted_by: Option<String>,
    pub accepted_at: Option<When>,
}

/// How far a stream was verified.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedStream {
    #[serde(skip)]
    pub stream: i64,
    pub topic: String,
    pub partition: i32,
    pub cluster_id: String,
    pub topic_id: String,
    pub replay: bool,
    /// The first offset that was looked at.
    pub from_offset: i64,
    /// Exclusive.
    pub next_offset: i64,
    pub batches: i64,
    #[serde(skip)]
    pub message_chain: Hash,
    #[serde(skip)]
    pub batch_chain: Hash,
    /// All of it has been proved from the topic, as far as retention has left it: by this
    /// run, or by others from which it went on.
    #[serde(skip)]
    pub deep: bool,
    /// With --deep or --against: the offsets that were read again from the topic, the end
    /// exclusive, or why none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_from: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_to: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic_not_read: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Totals {
    pub offsets: u64,
    pub batches: u64,
    pub events: u64,
    pub conflicts: u64,
    pub postings: u64,
    pub resources: u64,
    pub accounts: u64,
    /// Read again from the topic.
    pub messages: u64,
}

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    #[serde(serialize_with = "as_text")]
    pub verification_id: Uuid,
    /// Why the run is not written down in `verifications`.
    pub not_recorded: Option<String>,
    pub started_at: When,
    pub deep: bool,
    /// Only what came after the last verification without findings.
    pub since: Option<When>,
    pub findings: u64,
    pub checks: Vec<Checked>,
    pub gaps: Vec<Gap>,
    pub streams: Vec<VerifiedStream>,
    /// With --against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
    pub totals: Totals,
    pub seconds: f64,
    /// Rows and messages.
    pub rows_per_second: f64,
}

impl Check {
    pub fn name(self) -> &'static str {
        match self {
            Self::Offsets => "offsets",
            Self::BatchChain => "batch_chain",
            Self::Outcomes => "outcomes",
            Self::Postings => "postings",
            Self::Events => "events",
            Self::Resources => "resources",
            Self::Trace => "trace",
            Self::Positions => "positions",
            Self::Balances => "balances",
            Self::Accounts => "accounts",
            Self::AccountPostings => "account_postings",
            Self::TrialBalance => "trial_balance",
            Self::Quarantine => "quarantine",
            Self::Since => "since_last",
            Self::Topic => "topic",
            Self::Checkpoint => "checkpoint",
        }
    }

    pub fn what(self) -> &'static str {
        match self {
            Self::Offsets => "every offset is in exactly one batch, no gap, no overlap; what is lost is accepted",
            Self::BatchChain => "each batch hashes to what it recorded, and follows the one before it",
            Self::Outcomes => "each offset's outcome agrees with the rows at that offset",
            Self::Postings => "each posting has its dedup row, its line, two accounts of one asset",
            Self::Events => "each resource is in the state of one of its events, with that event's content",
            Self::Resources => "each resource has changed as often as its events say",
            Self::Trace => "from each resource's state `trace` comes to all events that it has changed by",
            Self::Positions => "positions computed anew = sum of the postings, for each resource and account",
            Self::Balances => "balances = sum of the postings, for each account",
            Self::Accounts => "each account's id is the hash of its path and asset",
            Self::AccountPostings => "each account's statement shows all of its postings, each once",
            Self::TrialBalance => "debits - credits = 0, for each asset",
            Self::Quarantine => "every refused message is counted in quarantine",
            Self::Since => "what the last verification saw is still there",
            Self::Topic => "the topic says the same: every message, every hole, the message chain",
            Self::Checkpoint => "the messages before the checkpoint are those that were signed off",
        }
    }
}

/// Collects what the checks find.
#[derive(Default)]
pub struct Findings(BTreeMap<Check, (u64, u64, Vec<Finding>)>);

impl Findings {
    /// So many more were compared. A check that is never named here did not run.
    pub fn compared(&mut self, check: Check, count: u64) {
        let (compared, ..) = self.0.entry(check).or_default();
        *compared = compared.saturating_add(count);
    }

    pub fn add(&mut self, check: Check, finding: Finding) {
        let (_, count, first) = self.0.entry(check).or_default();
        *count = count.saturating_add(1);
        if first.len() < LISTED {
            first.push(finding);
        }
    }

    pub fn count(&self) -> u64 {
        self.0.values().map(|(_, count, _)| *count).sum()
    }

    pub fn of(&self, check: Check) -> u64 {
        self.0.get(&check).map_or(0, |(_, count, _)| *count)
    }

    pub fn listed(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.0.values_mut().flat_map(|(_, _, first)| first)
    }

    pub fn into_checks(self) -> Vec<Checked> {
        let checked = |(check, (compared, findings, first)): (Check, (u64, u64, Vec<Finding>))| Checked {
            check: check.name(),
            what: check.what(),
            compared,
            findings,
            first,
        };
        self.0.into_iter().map(checked).collect()
    }
}

impl Finding {
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    pub fn at(mut self, stream: i64, offset: i64) -> Self {
        self.at = Some((stream, offset));
        self
    }

    pub fn account(mut self, account: AccountId) -> Self {
        self.account_id = Some(account);
        self
    }

    pub fn resource(mut self, resource: ResourceId) -> Self {
        self.resource_id = Some(resource);
        self
    }

    pub fn event(mut self, event: EventId) -> Self {
        self.event = Some(event);
        self
    }

    pub fn instead(mut self, expected: impl ToString, found: impl ToString) -> Self {
        (self.expected, self.found) = (Some(expected.to_string()), Some(found.to_string()));
        self
    }
}

fn event<S: Serializer>(id: &Option<EventId>, serializer: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => serializer.collect_str(id),
        None => serializer.serialize_none(),
    }
}

fn as_text<S: Serializer>(id: &Uuid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}
