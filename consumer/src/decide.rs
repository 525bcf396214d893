//! What each event does to the ledger: pure, no I/O.
//!
//! A resource's state is the greatest event seen by (rank, updatedAt, place in the
//! list of states, fingerprint). An event that is greater becomes the state, and
//! the ledger posts position(new) − position(old). Whatever the order of arrival,
//! the sum telescopes to the position of the greatest.
//!
//! Below the call of [`decide`] nothing may be refused.

use crate::account_postings::Sides;
use crate::distance::{Came, Distance};
use crate::message::{At, Message, Outcome};
use crate::rows::Posted;
use crate::turnover::Turnover;
use postonce_schema::{
    Accounts, Event, EventId, Facts, Fingerprint, Kind, Position, PostingAmount, ResourceId, Rules, State, Timestamp,
    Version,
};
use std::collections::{BTreeMap, HashMap};

/// How an event ranks among those of its resource. Two that are equal here are
/// the same event id; between their contents the fingerprint decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Standing {
    pub rank: u16,
    pub updated_at: Timestamp,
    pub place: u16,
}

/// The state in which a resource is held.
#[derive(Clone, Debug)]
pub struct Held<'a> {
    /// One more with each change, from 1 on.
    pub revision: i64,
    pub version: &'a Version,
    pub kind: &'a Kind,
    pub state: &'a State,
    pub updated_at: Timestamp,
    pub facts: Facts<'a>,
}

/// A state in the database that the rules at hand cannot read: the rules of a
/// version in use are frozen, so this is damage and never an event's fault.
#[derive(Debug, thiserror::Error)]
#[error("resource {resource:?} is held in {kind}.{state} under rules version {version}: {why}")]
pub struct UnreadableState {
    pub resource: ResourceId,
    pub kind: String,
    pub state: String,
    pub version: i32,
    pub why: String,
}

/// The contents known for event ids: that of the first arrival and those of its
/// conflicts.
pub type Known = HashMap<EventId, Vec<Content>>;

/// A content that is known of an event id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    pub fingerprint: Fingerprint,
    pub came: Came,
}

/// An event that is to be judged, with the message that brought it.
#[derive(Clone, Debug)]
pub struct Arrival<'b, 'a> {
    pub message: &'b Message<'a>,
    pub event: &'b Event<'a>,
}

/// What is to be written for a batch.
#[derive(Debug, Default)]
pub struct Decision<'b, 'a> {
    /// The outcome of each arrival, in their order.
    pub outcomes: Vec<(At, Outcome)>,
    /// New dedup rows: posted, noted and superseded events.
    pub events: Vec<NewEvent<'b, 'a>>,
    /// The last state of each resource that changed.
    pub resources: HashMap<ResourceId, Change<'b, 'a>>,
    pub postings: Vec<Posting>,
    /// The same, summed up.
    pub turnover: Turnover<'a>,
    /// How far from their originals the duplicates came.
    pub duplicates: BTreeMap<Distance, u64>,
    pub conflicts: Vec<Arrival<'b, 'a>>,
    pub incidents: Vec<Incident<'b, 'a>>,
}

/// An event that was not known.
#[derive(Clone, Debug)]
pub struct NewEvent<'b, 'a> {
    pub arrival: Arrival<'b, 'a>,
    pub outcome: Outcome,
    /// updatedAt of the state that it displaced: from it `trace` comes to the event before.
    pub previous_at: Option<Timestamp>,
}

/// A resource's change in this batch.
#[derive(Debug)]
pub struct Change<'b, 'a> {
    /// The revision that was read, `None` if the resource was absent.
    pub read_as: Option<i64>,
    pub revision: i64,
    pub to: Arrival<'b, 'a>,
}

/// One posting and its name: (stream, offset, line).
#[derive(Debug, Clone)]
pub struct Posting {
    pub at: At,
    pub line: i16,
    pub effective_at: Timestamp,
    pub posting: PostingAmount,
}

/// Something accepted that a person should look at.
#[derive(Debug)]
pub struct Incident<'b, 'a> {
    pub code: IncidentCode,
    pub arrival: Arrival<'b, 'a>,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncidentCode {
    /// The same id with another content.
    Conflict,
    /// A state of lower rank is later in time: perhaps the resource went back.
    Regression,
    /// The same state again, with other money.
    Restatement,
}

impl Content {
    fn of_this_batch(fingerprint: Fingerprint) -> Self {
        Self { fingerprint, came: Came::InThisBatch }
    }
}

impl Decision<'_, '_> {
    /// What is posted, by account.
    pub fn sides(&self) -> Sides {
        Sides::of(self.postings.iter().map(|posting| (posting.at.stream.as_i64(), Posted::of(posting))))
    }
}

impl IncidentCode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Regression => "regression",
            Self::Restatement => "restatement",
        }
    }
}

impl Standing {
    pub fn of(event: &Event<'_>) -> Self {
        Self { rank: event.state.rank, updated_at: event.updated_at, place: event.state.place }
    }
}

impl<'a> Held<'a> {
    fn current(&self) -> Current<'_, 'a> {
        let Self { revision, kind, state, updated_at, ref facts, .. } = *self;
        Current { revision, kind, state, updated_at, facts }
    }

    /// Finds the names that the database holds in the rules.
    pub fn from_names(
        rules: &'a Rules,
        resource: ResourceId,
        (kind, state, version): (&str, &str, i32),
        (revision, updated_at): (i64, Timestamp),
        facts: &str,
    ) -> Result<Self, UnreadableState> {
        let unreadable =
            |why: String| UnreadableState { resource, kind: kind.to_owned(), state: state.to_owned(), version, why };
        let found =
            rules.version(version).ok_or_else(|| unreadable("the rules file has no such version".to_owned()))?;
        let held = found.kind(kind).and_then(|kind| Some((kind, kind.state(state)?)));
        let (kind, state) = held.ok_or_else(|| unreadable("the rules have no such state".to_owned()))?;
        let facts = Facts::from_json(kind, facts).map_err(|reject| unreadable(reject.to_string()))?.into_owned();
        Ok(Self { revision, version: found, kind, state, updated_at, facts })
    }
}

/// The arrivals that must be looked up in the database: those that are not greater
/// than their resource's state. A greater one is provably unseen, for if it had
/// been seen the state would be at least as great.
pub fn not_greater<'n, 'b, 'a>(
    arrivals: &'n [Arrival<'b, 'a>],
    held: &'n HashMap<ResourceId, Held<'a>>,
) -> impl Iterator<Item = &'b Event<'a>> + 'n {
    arrivals
        .iter()
        .filter(|arrival| {
            held.get(&arrival.event.resource_id)
                .is_some_and(|held| Standing::of(arrival.event) <= held.current().standing())
        })
        .map(|arrival| arrival.event)
}

/// Judges the arrivals in their order, against the states and ids that are known.
pub fn decide<'b, 'a: 'b>(
    arrivals: &[Arrival<'b, 'a>],
    held: HashMap<ResourceId, Held<'a>>,
    known: Known,
) -> Decision<'b, 'a> {
    let most = arrivals.len();
    let decision =
        Decision { outcomes: Vec::with_capacity(most), events: Vec::with_capacity(most), ..Decision::default() };
    let states = States { read: held, changed: HashMap::with_capacity(most) };
    let (first, accounts) = (HashMap::with_capacity(most), Accounts::default());
    let mut judge = Judge { states, known, first, accounts, decision };
    for arrival in arrivals {
        let outcome = judge.arrival(arrival);
        judge.decision.outcomes.push((arrival.message.at, outcome));
    }
    Decision { resources: judge.states.changed, ..judge.decision }
}

struct Judge<'b, 'a> {
    states: States<'b, 'a>,
    /// What was known before, and the other contents that this batch has brought.
    known: Known,
    /// What this batch brought first of each id.
    first: HashMap<EventId, Fingerprint>,
    accounts: Accounts,
    decision: Decision<'b, 'a>,
}

/// The states of the resources: as they were read, and as this batch has changed them.
struct States<'b, 'a> {
    read: HashMap<ResourceId, Held<'a>>,
    changed: HashMap<ResourceId, Change<'b, 'a>>,
}

impl<'a> States<'_, 'a> {
    fn current(&self, resource: ResourceId) -> Option<Current<'_, 'a>> {
        if let Some(Change { revision, to: Arrival { event, .. }, .. }) = self.changed.get(&resource) {
            let Event { kind, state, updated_at, ref facts, .. } = **event;
            return Some(Current { revision: *revision, kind, state, updated_at, facts });
        }
        self.read.get(&resource).map(Held::current)
    }
}

/// The state that a resource is in, wherever it stands.
#[derive(Clone, Copy)]
struct Current<'c, 'a> {
    revision: i64,
    kind: &'c Kind,
    state: &'c State,
    updated_at: Timestamp,
    facts: &'c Facts<'a>,
}

impl Current<'_, '_> {
    fn standing(self) -> Standing {
        Standing { rank: self.state.rank, updated_at: self.updated_at, place: self.state.place }
    }

    fn position(self, accounts: &mut Accounts) -> Position {
        Position::with(accounts, self.state, self.facts)
    }
}

impl<'b, 'a: 'b> Judge<'b, 'a> {
    fn arrival(&mut self, arrival: &Arrival<'b, 'a>) -> Outcome {
        let event = arrival.event;
        // The greatest content that is known of this id, if any is.
        let mut known: Option<Fingerprint> = None;
        let first = self.first.get(&event.id).map(|first| Content::of_this_batch(*first));
        for seen in self.known.get(&event.id).into_iter().flatten().copied().chain(first) {
            if seen.fingerprint == event.fingerprint {
                let distance = Distance::of(seen.came, arrival.message.time());
                *self.decision.duplicates.entry(distance).or_default() += 1;
                return Outcome::Duplicate;
            }
            known = known.max(Some(seen.fingerprint));
        }
        let held = self.states.current(event.resource_id).map(Current::standing);
        if let Some(known) = known {
            self.known.entry(event.id).or_default().push(Content::of_this_batch(event.fingerprint));
            // Of two contents the greater fingerprint stands, so that every order of
            // arrival ends alike; it matters only where the id is the resource's state.
            let stands = held == Some(Standing::of(event)) && event.fingerprint > known;
            self.conflict(arrival, stands);
            if stands {
                self.become_state(arrival);
            }
            return Outcome::Conflict;
        }
        self.first.insert(event.id, event.fingerprint);
        let outcome = if held.is_none_or(|held| Standing::of(event) > held) {
            self.compare_with_held(arrival);
            if self.become_state(arrival) { Outcome::Posted } else { Outcome::Noted }
        } else {
            self.superseded(arrival);
            Outcome::Superseded
        };
        let previous_at = held.filter(|_| outcome != Outcome::Superseded).map(|held| held.updated_at);
        self.decision.events.push(NewEvent { arrival: arrival.clone(), outcome, previous_at });
        outcome
    }

    /// Moves the resource to this event and posts the difference. Whether money moved.
    fn become_state(&mut self, arrival: &Arrival<'b, 'a>) -> bool {
        let event = arrival.event;
        let before = self.states.current(event.resource_id);
        let held_position = before.map(|held| held.position(&mut self.accounts)).unwrap_or_default();
        let revision = before.map_or(0, |held| held.revision);
        let postings = Position::with(&mut self.accounts, event.state, &event.facts).minus(held_position);
        let moved = !postings.is_empty();
        for (line, posting) in (0..).zip(postings) {
            self.decision.turnover.add(event.kind, &posting);
            self.decision.postings.push(Posting {
                at: arrival.message.at,
                line,
                effective_at: event.updated_at,
                posting,
            });
        }
        let new = Change { read_as: (revision > 0).then_some(revision), revision: 0, to: arrival.clone() };
        // The revision that was read stays what it was, however often this batch changes it.
        let change = self.states.changed.entry(event.resource_id).or_insert(new);
        change.revision = revision + 1;
        change.to = arrival.clone();
        moved
    }

    /// What a person should know when this event becomes the state.
    fn compare_with_held(&mut self, arrival: &Arrival<'b, 'a>) {
        let event = arrival.event;
        let Some(held) = self.states.current(event.resource_id) else {
            return;
        };
        let regression = (held.state.rank < event.state.rank && held.updated_at > event.updated_at).then(|| {
            format!(
                "{} of {} outranks {}.{} of {}, which is later in time",
                event.type_name(),
                event.updated_at,
                held.kind.name,
                held.state.name,
                held.updated_at
            )
        });
        let restated = held.state.name == event.state.name
            && Position::with(&mut self.accounts, event.state, &event.facts) != held.position(&mut self.accounts);
        let restatement = restated
            .then(|| format!("{} of {} restates that of {}", event.type_name(), event.updated_at, held.updated_at));
        for (code, detail) in [(IncidentCode::Regression, regression), (IncidentCode::Restatement, restatement)] {
            if let Some(detail) = detail {
                self.incident(code, arrival, detail);
            }
        }
    }

    fn superseded(&mut self, arrival: &Arrival<'b, 'a>) {
        let event = arrival.event;
        let Some(held) = self.states.current(event.resource_id) else {
            return;
        };
        if event.state.rank < held.state.rank && event.updated_at > held.updated_at {
            let detail = format!(
                "{} of {} is later in time than {}.{} of {}, which outranks it and stands",
                event.type_name(),
                event.updated_at,
                held.kind.name,
                held.state.name,
                held.updated_at
            );
            self.incident(IncidentCode::Regression, arrival, detail);
        }
    }

    fn conflict(&mut self, arrival: &Arrival<'b, 'a>, stands: bool) {
        let verdict = if stands { "this one stands" } else { "the other one stands" };
        let detail = format!("{} has arrived with another content; {verdict}", arrival.event.id);
        self.incident(IncidentCode::Conflict, arrival, detail);
        self.decision.conflicts.push(arrival.clone());
    }

    fn incident(&mut self, code: IncidentCode, arrival: &Arrival<'b, 'a>, detail: String) {
        self.decision.incidents.push(Incident { code, arrival: arrival.clone(), detail });
    }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;
