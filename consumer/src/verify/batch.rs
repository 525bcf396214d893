//! One batch against the rows at its offsets.

use super::report::{Check, Finding, Findings, Totals};
use super::resources::Resources;
use super::sums::Sums;
use super::tables::Event;
use crate::account_postings::Sides;
use crate::chain::{BatchHash, Hash};
use crate::message::Outcome;
use crate::outcomes::{Run, UnknownOutcome, runs};
use crate::rows::Posted;

/// A row of `batches`.
#[derive(Clone, Debug)]
pub struct Batch {
    pub stream: i64,
    pub seq: i64,
    pub from: i64,
    pub next: i64,
    pub outcomes: Vec<u8>,
    pub message_chain: Hash,
    pub previous_hash: Hash,
    pub hash: Hash,
    pub recorded_at: i64,
}

/// How many offsets of a batch have which outcome, as far as rows follow from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub events: usize,
    pub conflicts: usize,
    pub posted: usize,
    pub rejected: u64,
}

/// A batch with those of its rows that have been read.
#[derive(Debug)]
pub struct Pending {
    pub batch: Batch,
    pub expected: Expected,
    pub events: Vec<Event>,
    pub conflicts: usize,
    pub postings: Vec<Posted>,
    /// A row has come since the rows were last hashed.
    pub touched: bool,
}

/// What the judgement of a batch adds to.
pub struct Ledger<'l> {
    pub sums: &'l mut Sums,
    pub resources: &'l mut Resources,
    pub findings: &'l mut Findings,
    pub totals: &'l mut Totals,
}

impl Batch {
    /// Where the outcomes end, and how many rows must be there.
    pub fn expected(&self) -> Result<(i64, Expected), UnknownOutcome> {
        let (mut end, mut expected) = (self.from, Expected::default());
        for run in runs(self.from, &self.outcomes) {
            let run = run?;
            end = run.next_offset();
            if let Run::Message { outcome, .. } = run {
                match outcome {
                    Outcome::Posted => (expected.events, expected.posted) = (expected.events + 1, expected.posted + 1),
                    Outcome::Noted | Outcome::Superseded => expected.events += 1,
                    Outcome::Conflict => expected.conflicts += 1,
                    Outcome::Rejected => expected.rejected += 1,
                    Outcome::Duplicate => {}
                }
            }
        }
        Ok((end, expected))
    }
}

impl Pending {
    pub fn new(batch: Batch, expected: Expected) -> Self {
        // A batch without rows has its hash too.
        Self { batch, expected, events: Vec::new(), conflicts: 0, postings: Vec::new(), touched: true }
    }

    pub fn event(&mut self, event: Event) {
        self.conflicts += usize::from(event.outcome == b'C');
        self.events.push(event);
        self.touched = true;
    }

    pub fn posting(&mut self, posting: Posted) {
        self.postings.push(posting);
        self.touched = true;
    }

    pub fn lacks_events(&self) -> bool {
        self.events.len() - self.conflicts < self.expected.events
    }

    pub fn lacks_conflicts(&self) -> bool {
        self.conflicts < self.expected.conflicts
    }

    /// Whether the rows that have come are all of them. How many postings there must be
    /// no row says; but rows that hash to what the batch recorded are its rows.
    pub fn is_complete(&mut self) -> bool {
        if !std::mem::take(&mut self.touched) || self.lacks_events() || self.lacks_conflicts() {
            return false;
        }
        self.postings.len() >= self.expected.posted && self.hashes()
    }

    /// Whether the rows hash to what the batch recorded.
    fn hashes(&mut self) -> bool {
        self.events.sort_by_key(|event| event.offset);
        self.postings.sort_by_key(|posting| (posting.offset, posting.line));
        let Batch { stream, seq, from, next, outcomes, message_chain, previous_hash, hash, .. } = &self.batch;
        let mut own = BatchHash::new(*previous_hash, *stream, *seq, (*from, *next), outcomes, *message_chain);
        self.events.iter().for_each(|event| own.row(&event.canonical));
        let mut bytes = Vec::with_capacity(64);
        for posting in &self.postings {
            bytes.clear();
            posting.canonical(&mut bytes);
            own.row(&bytes);
        }
        own.finish() == *hash
    }

    /// Judges the batch by all its rows, and adds them up.
    pub fn judge(mut self, ledger: &mut Ledger<'_>) {
        if !self.hashes() {
            let Batch { stream, seq, from, next, .. } = self.batch;
            let what = format!(
                "batch {seq} (offsets {from} to {}) does not hash to what it recorded: one of its rows was added, \
                 edited or deleted",
                next - 1
            );
            ledger.findings.add(Check::BatchChain, Finding::new(what).at(stream, from));
        }
        let postings = self.postings.iter().map(|posting| (self.batch.stream, *posting));
        for row in Sides::of(postings).rows() {
            ledger.sums.expected_row(&row);
        }
        ledger.totals.batches += 1;
        ledger.totals.offsets = ledger.totals.offsets.saturating_add(self.batch.next.abs_diff(self.batch.from));
        let (mut events, mut postings) = (self.events.as_slice(), self.postings.as_slice());
        for run in runs(self.batch.from, &self.batch.outcomes) {
            // Bytes that are no outcome were found when the batch was loaded.
            let Ok(run) = run else { break };
            let outcome = match run {
                Run::Message { outcome, .. } => Some(outcome),
                Run::Hole { .. } | Run::Lost { .. } => None,
            };
            let next = run.next_offset();
            let here = take_before(&mut events, next, |event| event.offset);
            let posted = take_before(&mut postings, next, |posting| posting.offset);
            if !here.is_empty() || !posted.is_empty() || outcome.is_some() {
                offset(self.batch.stream, run, outcome, here, posted, ledger);
            }
        }
    }
}

/// The rows before an offset, taken off the front.
fn take_before<'r, R>(rows: &mut &'r [R], next: i64, offset: impl Fn(&R) -> i64) -> &'r [R] {
    let (here, rest) = rows.split_at(rows.partition_point(|row| offset(row) < next));
    *rows = rest;
    here
}

/// One offset, or one hole.
fn offset(
    stream: i64,
    run: Run,
    outcome: Option<Outcome>,
    events: &[Event],
    postings: &[Posted],
    ledger: &mut Ledger<'_>,
) {
    let at = match run {
        Run::Message { offset, .. } => offset,
        Run::Hole { from, .. } | Run::Lost { from, .. } => {
            events.first().map(|event| event.offset).or(postings.first().map(|posting| posting.offset)).unwrap_or(from)
        }
    };
    let expected: &[u8] = match outcome {
        Some(Outcome::Posted) => b"P",
        Some(Outcome::Noted) => b"N",
        Some(Outcome::Superseded) => b"S",
        Some(Outcome::Conflict) => b"C",
        Some(Outcome::Duplicate | Outcome::Rejected) | None => b"",
    };
    let found: Vec<u8> = events.iter().map(|event| event.outcome).collect();
    if found != expected {
        let name = outcome.map_or("no message", Outcome::name);
        let what = format!("the batch says \"{name}\" of this offset, the dedup rows say otherwise");
        let finding = Finding { event: events.first().map(|event| event.id), ..Finding::new(what) };
        let finding = finding.at(stream, at).instead(rows_of(expected), rows_of(&found));
        ledger.findings.add(Check::Outcomes, finding);
    }
    for event in events {
        seen(stream, event, ledger);
    }
    let event = events.first();
    lines(stream, at, outcome, event, postings, ledger);
    for posting in postings {
        posted(stream, posting, event, ledger);
    }
}

fn rows_of(outcomes: &[u8]) -> String {
    match outcomes {
        [] => "no dedup row".to_owned(),
        _ => outcomes.iter().map(|byte| char::from(*byte).to_string()).collect::<Vec<_>>().join(" and "),
    }
}

/// Counts an event for what its resource says.
fn seen(stream: i64, event: &Event, ledger: &mut Ledger<'_>) {
    let conflict = event.outcome == b'C';
    let count = if conflict { &mut ledger.totals.conflicts } else { &mut ledger.totals.events };
    *count += 1;
    if let Some(touched) = &mut ledger.resources.touched {
        touched.insert(event.resource);
        return;
    }
    if event.outcome != b'S' {
        ledger.resources.wanted.seen(event.id, event.fingerprint);
    }
    // A conflict may have become the state or not: its resource is judged by itself.
    let changed = matches!(event.outcome, b'P' | b'N');
    if !ledger.resources.saw(event.resource, stream, event.offset) {
        return;
    }
    if changed {
        match ledger.resources.contested.get_mut(&event.resource) {
            Some(contested) => contested.changes += 1,
            None => ledger.sums.changed(event.resource),
        }
        // Not so a conflict: nothing points to it, for the event before it has its time.
        ledger.sums.changed_at(event.resource, event.updated_at);
    }
    if let Some(time) = event.previous_at {
        ledger.sums.points_to(event.resource, time);
        if time >= event.updated_at {
            ledger.resources.circular.insert(event.resource);
        }
    }
}

/// Whether an offset has the postings that its outcome asks for, line by line.
fn lines(
    stream: i64,
    at: i64,
    outcome: Option<Outcome>,
    event: Option<&Event>,
    postings: &[Posted],
    ledger: &mut Ledger<'_>,
) {
    let mut add = |what: String| {
        let finding = Finding { event: event.map(|event| event.id), ..Finding::new(what) };
        ledger.findings.add(Check::Postings, finding.at(stream, at));
    };
    match outcome {
        Some(Outcome::Posted) if postings.is_empty() => add("the event was posted, but its postings are gone".into()),
        Some(Outcome::Posted | Outcome::Conflict) => {}
        _ if !postings.is_empty() => {
            let name = outcome.map_or("no message", Outcome::name);
            add(format!("{} postings at an offset whose outcome is \"{name}\", which posts nothing", postings.len()));
        }
        _ => {}
    }
    for (expected, posting) in (0i16..).zip(postings) {
        if posting.line != expected {
            let what = format!("line {} of the event's postings stands where line {expected} should", posting.line);
            return add(what + ": one was added or deleted");
        }
    }
}

/// One posting: its accounts, its time, its sums.
fn posted(stream: i64, posting: &Posted, event: Option<&Event>, ledger: &mut Ledger<'_>) {
    let Posted { offset, line, debit, credit, amount, effective_at } = *posting;
    ledger.totals.postings += 1;
    let found = |what: String| {
        let finding = Finding { event: event.map(|event| event.id), ..Finding::new(what) };
        finding.at(stream, offset).account(debit)
    };
    if amount <= 0 || debit == credit {
        let finding = found(format!("line {line} moves {amount} minor units from an account to itself or backwards"));
        ledger.findings.add(Check::Postings, finding);
    }
    match ledger.sums.assets_of(debit, credit) {
        [Some(one), Some(other)] if one == other => {}
        [Some(one), Some(other)] => {
            let assets = &ledger.sums.assets;
            let finding = found(format!("line {line} moves {} into {}", assets[other], assets[one]));
            ledger.findings.add(Check::Postings, finding);
        }
        [debited, _] => {
            let unknown = if debited.is_none() { debit } else { credit };
            let finding = found(format!("line {line} names an account that is not there")).account(unknown);
            ledger.findings.add(Check::Postings, finding);
        }
    }
    ledger.sums.post(debit, credit, amount);
    match event {
        None => {
            let finding = found(format!("line {line} has no dedup row: no event has posted it"));
            ledger.findings.add(Check::Postings, finding);
        }
        Some(event) => {
            if event.updated_at != effective_at {
                let finding = found(format!("line {line} takes effect at another time than its event"));
                ledger.findings.add(Check::Postings, finding.instead(time(event.updated_at), time(effective_at)));
            }
            if ledger.resources.saw(event.resource, stream, offset) {
                ledger.sums.posted(event.resource, debit, credit, amount);
            }
        }
    }
}

fn time(micros: i64) -> String {
    postonce_schema::Timestamp::from_micros(micros)
        .map_or_else(|| "a time outside the years 1970 to 9999".to_owned(), |time| time.to_string())
}
