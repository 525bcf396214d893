//! What the topic says against what the ledger says, offset by offset: pure, no I/O.

use super::difference::{Difference, Differences, What};
use super::run::Counts;
use crate::chain::Hash;
use crate::decide::Arrival;
use crate::message::{Decoded, Message, Outcome};
use crate::outcomes::Run;
use postonce_schema::Reject;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A message as the rules read it.
pub struct Seen<'a> {
    pub partition: i32,
    pub message: Message<'a>,
    pub decoded: Decoded<'a>,
}

/// The offsets of one partition that a stretch has passed.
#[derive(Debug, Clone, Copy)]
pub struct Passed {
    pub from: i64,
    /// Exclusive.
    pub to: i64,
}

/// What the ledger says of a stretch.
pub struct Said {
    /// For each message that brought an event; a duplicate where it is missing.
    pub outcomes: HashMap<(i32, i64), Outcome>,
    /// The names of refused messages, by partition and offset.
    pub hashes: HashMap<(i32, i64), Hash>,
    /// Those of them that are in quarantine.
    pub quarantined: HashSet<Hash>,
    /// What `batches` has recorded in each partition.
    pub recorded: BTreeMap<i32, Vec<SameOutcome>>,
}

/// What came out of it.
pub struct Tally {
    pub counts: Counts,
    pub differences: Differences,
}

impl Tally {
    /// Judges a stretch: each offset of it once.
    pub fn judge(&mut self, seen: &[Seen<'_>], passed: &BTreeMap<i32, Passed>, said: &Said) {
        let mut of_partition: BTreeMap<i32, Vec<&Seen<'_>>> = BTreeMap::new();
        for one in seen {
            of_partition.entry(one.partition).or_default().push(one);
        }
        for (partition, Passed { from, to }) in passed {
            let mut recorded = Recorded::new(said.recorded.get(partition).map_or(&[], Vec::as_slice));
            let mut next = *from;
            for one in of_partition.remove(partition).unwrap_or_default() {
                let offset = one.message.at.offset;
                self.hole(*partition, next, offset, &mut recorded);
                self.message(one, recorded.at(offset), said);
                next = offset + 1;
            }
            self.hole(*partition, next, *to, &mut recorded);
        }
    }

    /// The topic has nothing from `from` to before `to`.
    fn hole(&mut self, partition: i32, from: i64, to: i64, recorded: &mut Recorded<'_>) {
        self.counts.holes += u64::try_from(to - from).unwrap_or(0);
        for SameOutcome { from, to, byte } in recorded.within(from, to) {
            if byte != b'.' {
                let last = to - 1;
                let name = name_of(byte);
                let detail = format!("the ledger has recorded offsets {from} to {last} as {name}");
                let times = u64::try_from(to - from).unwrap_or(0);
                let lost = Difference { what: What::NoMessage, partition, offset: from, event: None, detail };
                self.differences.note(lost, times);
            }
        }
    }

    fn message(&mut self, seen: &Seen<'_>, recorded: Option<u8>, said: &Said) {
        self.counts.read += 1;
        match &seen.decoded {
            Err(reject) => self.refused(seen, reject, recorded, said),
            Ok(event) => {
                let place = (seen.partition, seen.message.at.offset);
                let outcome = said.outcomes.get(&place).copied().unwrap_or(Outcome::Duplicate);
                self.accepted(seen.partition, &Arrival { message: &seen.message, event }, outcome, recorded);
            }
        }
    }

    fn refused(&mut self, seen: &Seen<'_>, reject: &Reject, recorded: Option<u8>, said: &Said) {
        self.counts.rejected += 1;
        let (partition, offset) = (seen.partition, seen.message.at.offset);
        let held = said.hashes.get(&(partition, offset)).is_some_and(|hash| said.quarantined.contains(hash));
        let (code, place) = (reject.code(), reject.place());
        let (what, detail) = match recorded {
            Some(byte) if byte != b'R' => (
                What::RefusedNow,
                format!("refused as {code} at \"{place}\"; the ledger has recorded {}", name_of(byte)),
            ),
            _ if held => return,
            _ => (What::NotInQuarantine, format!("refused as {code} at \"{place}\": {reject}")),
        };
        self.differences.note(Difference { what, partition, offset, event: None, detail }, 1);
    }

    fn accepted(&mut self, partition: i32, arrival: &Arrival<'_, '_>, outcome: Outcome, recorded: Option<u8>) {
        let counts = &mut self.counts;
        let would = format!("would be {}", outcome.name());
        let (what, detail) = match (outcome, recorded) {
            (Outcome::Duplicate, _) => {
                counts.duplicates += 1;
                match recorded {
                    Some(b'.') => {
                        (What::Skipped, "the event is known, but the ledger has recorded no message here".to_owned())
                    }
                    _ => return,
                }
            }
            (_, Some(b'R')) => {
                counts.accepted_now += 1;
                (What::AcceptedNow, format!("{would}; in the ledger it is in quarantine"))
            }
            (Outcome::Conflict, _) => {
                counts.conflicts += 1;
                (What::Conflict, "the id is known, and this content is not".to_owned())
            }
            (_, recorded) => {
                counts.new += 1;
                counts.superseded += u64::from(outcome == Outcome::Superseded);
                match recorded {
                    Some(b'.') => (What::Skipped, format!("{would}; the ledger has recorded no message here")),
                    Some(byte) => (
                        What::New,
                        format!("{would}; the ledger has recorded {} here and does not know it", name_of(byte)),
                    ),
                    None => (What::New, format!("{would}; the ledger has not read this offset")),
                }
            }
        };
        self.differences.of_event(what, partition, arrival, detail);
    }
}

/// Offsets of which the ledger says the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SameOutcome {
    pub from: i64,
    /// Exclusive.
    pub to: i64,
    /// [`Outcome::byte`], or `.` where the ledger knows of no message.
    pub byte: u8,
}

impl From<Run> for SameOutcome {
    fn from(run: Run) -> Self {
        let to = run.next_offset();
        match run {
            Run::Message { offset, outcome } => Self { from: offset, to, byte: outcome.byte() },
            Run::Hole { from, .. } | Run::Lost { from, .. } => Self { from, to, byte: b'.' },
        }
    }
}

impl SameOutcome {
    /// Neighbours that say the same are one.
    pub fn of(runs: impl IntoIterator<Item = Run>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for next in runs.into_iter().map(Self::from) {
            match all.last_mut() {
                Some(last) if (last.to, last.byte) == (next.from, next.byte) => last.to = next.to,
                _ => all.push(next),
            }
        }
        all
    }
}

/// What was recorded, walked once from the first offset to the last.
struct Recorded<'r>(&'r [SameOutcome]);

impl<'r> Recorded<'r> {
    fn new(runs: &'r [SameOutcome]) -> Self {
        Self(runs)
    }

    fn forget_before(&mut self, offset: i64) {
        let gone = self.0.iter().take_while(|run| run.to <= offset).count();
        self.0 = &self.0[gone..];
    }

    fn at(&mut self, offset: i64) -> Option<u8> {
        self.forget_before(offset);
        self.0.first().filter(|run| run.from <= offset).map(|run| run.byte)
    }

    fn within(&mut self, from: i64, to: i64) -> Vec<SameOutcome> {
        self.forget_before(from);
        let overlaps = self.0.iter().take_while(|run| run.from < to);
        let part = overlaps.map(|run| SameOutcome { from: run.from.max(from), to: run.to.min(to), byte: run.byte });
        part.filter(|run| run.from < run.to).collect()
    }
}

fn name_of(byte: u8) -> &'static str {
    Outcome::ALL.into_iter().find(|outcome| outcome.byte() == byte).map_or("no message", Outcome::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: i64, to: i64, byte: u8) -> SameOutcome {
        SameOutcome { from, to, byte }
    }

    #[test]
    fn what_is_recorded_is_found_at_its_offset() {
        let runs = [run(10, 12, b'P'), run(12, 20, b'.'), run(20, 21, b'R')];
        let mut recorded = Recorded::new(&runs);
        assert_eq!(recorded.at(9), None);
        assert_eq!(recorded.at(11), Some(b'P'));
        assert_eq!(recorded.within(12, 15), [run(12, 15, b'.')]);
        assert_eq!(recorded.at(19), Some(b'.'));
        assert_eq!(recorded.within(19, 30), [run(19, 20, b'.'), run(20, 21, b'R')]);
        assert_eq!(recorded.at(21), None);
    }

    #[test]
    fn neighbours_that_say_the_same_are_one() {
        let message = |offset, outcome| Run::Message { offset, outcome };
        let runs = [
            message(5, Outcome::Posted),
            message(6, Outcome::Posted),
            Run::Hole { from: 7, to: 9 },
            Run::Lost { from: 9, to: 20 },
            message(20, Outcome::Rejected),
        ];
        assert_eq!(SameOutcome::of(runs), [run(5, 7, b'P'), run(7, 20, b'.'), run(20, 21, b'R')]);
    }

    #[test]
    fn an_outcome_without_a_message_is_told() {
        let mut tally = Tally { counts: Counts::default(), differences: Differences::at_most(5) };
        let recorded = BTreeMap::from([(0, vec![run(5, 8, b'.'), run(8, 10, b'P'), run(10, 12, b'.')])]);
        let said = Said { outcomes: HashMap::new(), hashes: HashMap::new(), quarantined: HashSet::new(), recorded };
        tally.judge(&[], &BTreeMap::from([(0, Passed { from: 5, to: 12 })]), &said);
        assert_eq!((tally.counts.holes, tally.differences.total()), (7, 2));
        assert_eq!((tally.differences.first[0].what, tally.differences.first[0].offset), (What::NoMessage, 8));
    }
}
