//! What the topic says against what the ledger says, offset by offset: pure, no I/O.

use super::difference::{Difference, Differences, What};
use super::run::Counts;
use crate::chain::Hash;
use crate::decide::Arrival;
use crate::message::{Decoded, Message, Outcome};
use crate::outcomes::Run;
use postonce_schema::Reject;
use std::collections::{BTreeMap, HashMap};

/// A message as the rules read it.
pub struct Seen<'a> {
    pub partition: i32,
    pub message: Message<'a>,
    pub decoded: Decoded<'a>,
}

impl Seen<'_> {
    /// Partition and offset.
    pub fn place(&self) -> (i32, i64) {
        (self.partition, self.message.at.offset)
    }
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
    /// The names of messages that were or are refused, by partition and offset.
    pub hashes: HashMap<(i32, i64), Hash>,
    /// Those of them that are in quarantine, and whether a person has dismissed them.
    pub quarantined: HashMap<Hash, bool>,
    /// What `batches` has recorded in each partition.
    pub recorded: BTreeMap<i32, Vec<SameOutcome>>,
}

/// What came out of it.
pub struct Tally {
    pub counts: Counts,
    pub differences: Differences,
}

impl Said {
    /// Whether a message is in quarantine, and there dismissed.
    fn quarantined(&self, place: (i32, i64)) -> Option<bool> {
        self.quarantined.get(self.hashes.get(&place)?).copied()
    }
}

impl Tally {
    /// Judges a stretch: each offset of it once.
    pub fn judge(&mut self, seen: &[Seen<'_>], passed: &BTreeMap<i32, Passed>, said: &Said) {
        let mut of_partition: BTreeMap<i32, Vec<&Seen<'_>>> = BTreeMap::new();
        for one in seen {
            of_partition.entry(one.partition).or_default().push(one);
        }
        for (partition, Passed { from, to }) in passed {
            let recorded = said.recorded.get(partition).map_or(&[][..], Vec::as_slice);
            let mut next = *from;
            for one in of_partition.remove(partition).unwrap_or_default() {
                let offset = one.message.at.offset;
                self.hole(*partition, next, offset, recorded);
                self.message(one, recorded_at(recorded, offset), said);
                next = offset + 1;
            }
            self.hole(*partition, next, *to, recorded);
        }
    }

    /// The topic has nothing from `from` to before `to`.
    fn hole(&mut self, partition: i32, from: i64, to: i64, recorded: &[SameOutcome]) {
        self.counts.holes += u64::try_from(to - from).unwrap_or(0);
        for SameOutcome { from, to, byte } in within(recorded, from, to) {
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
                let outcome = said.outcomes.get(&seen.place()).copied().unwrap_or(Outcome::Duplicate);
                let dismissed = said.quarantined(seen.place()).unwrap_or(false);
                self.accepted(seen.partition, &Arrival { message: &seen.message, event }, outcome, recorded, dismissed);
            }
        }
    }

    fn refused(&mut self, seen: &Seen<'_>, reject: &Reject, recorded: Option<u8>, said: &Said) {
        self.counts.rejected += 1;
        let (partition, offset) = seen.place();
        let held = said.quarantined((partition, offset)).is_some();
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

    fn accepted(
        &mut self,
        partition: i32,
        arrival: &Arrival<'_, '_>,
        outcome: Outcome,
        recorded: Option<u8>,
        dismissed: bool,
    ) {
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
                if dismissed {
                    return;
                }
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

/// What the ledger says of an offset; nothing where it has not read it.
pub fn recorded_at(recorded: &[SameOutcome], offset: i64) -> Option<u8> {
    let nth = recorded.partition_point(|same| same.to <= offset);
    recorded.get(nth).filter(|same| same.from <= offset).map(|same| same.byte)
}

/// What it says of the offsets `from` to before `to`.
fn within(recorded: &[SameOutcome], from: i64, to: i64) -> impl Iterator<Item = SameOutcome> {
    let first = recorded.partition_point(|same| same.to <= from);
    let overlaps = recorded[first..].iter().take_while(move |same| same.from < to && from < to);
    overlaps.map(move |same| SameOutcome { from: same.from.max(from), to: same.to.min(to), byte: same.byte })
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
        let at = |offset| recorded_at(&runs, offset);
        assert_eq!(
            [9, 10, 11, 12, 19, 20, 21].map(at),
            [None, Some(b'P'), Some(b'P'), Some(b'.'), Some(b'.'), Some(b'R'), None]
        );
        let part = |from, to| within(&runs, from, to).collect::<Vec<_>>();
        assert_eq!(part(12, 15), [run(12, 15, b'.')]);
        assert_eq!(part(11, 30), [run(11, 12, b'P'), run(12, 20, b'.'), run(20, 21, b'R')]);
        assert_eq!((part(0, 10), part(15, 15), part(21, 30)), (vec![], vec![], vec![]));
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
        let said = Said { outcomes: HashMap::new(), hashes: HashMap::new(), quarantined: HashMap::new(), recorded };
        tally.judge(&[], &BTreeMap::from([(0, Passed { from: 5, to: 12 })]), &said);
        assert_eq!((tally.counts.holes, tally.differences.total()), (7, 2));
        assert_eq!((tally.differences.first[0].what, tally.differences.first[0].offset), (What::NoMessage, 8));
    }
}
