//! A workload as it comes from the world: payments that are created,
//! authorized and captured, refunds and disputes after them, payouts, top-ups,
//! transfers, settlements, conversions; and with it what goes wrong on the
//! way: the same event again, events out of order, messages that are no
//! events, and two stories told under one id.
//!
//! The same [`Workload`] gives the same bytes (with the same version of this
//! crate). Memory does not grow with the number of events.

mod fact;
mod lifecycle;
mod poison;
mod queue;
mod steady;
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub use poison::Poison;
pub use steady::{Pace, Steady};

use fact::{Fact, State, Style};
use lifecycle::{Lifecycle, Nursery};
use queue::Queue;

/// Duplicates and conflicts are of one of so many events before.
const REMEMBERED: usize = 8_192;
/// An event out of order comes so many places late at most.
const MAX_DELAY: u64 = 400;
/// One event comes so many microseconds after the one before, at most; half of
/// it on average.
const MAX_STEP_MICROS: i64 = 400_000;
/// 2024-01-01T00:00:00Z.
const DEFAULT_START_SECONDS: i64 = 1_704_067_200;

/// What to generate. The fractions are of all events, from 0 to 1.
#[derive(Clone, Debug)]
pub struct Workload {
    /// So many events in all, whatever their class.
    pub events: u64,
    /// The same seed gives the same bytes.
    pub seed: u64,
    /// Earlier events sent again: byte for byte, or in other words (key order,
    /// white space, offset of the time, source) that leave the event the same.
    pub duplicates: f64,
    /// Events that come up to 400 places late. Their class is not touched.
    pub disorder: f64,
    /// Messages that the ledger must refuse, of every class in [`Poison`].
    pub poison: f64,
    /// Events with the type, resource and time of an earlier one and another
    /// amount.
    pub conflicts: f64,
    /// Only poison that a JSONL file can hold, see [`Poison::fits_line`].
    pub lines_only: bool,
    /// Resources are numbered from here on, and no more of them are made than events:
    /// workloads whose numbers do not overlap have no resource in common.
    pub first_resource: u64,
    /// The time before the first event; the next ones follow on average 0.2 s
    /// apart.
    pub start: Timestamp,
}

impl Workload {
    /// So many good events in order, from 2024-01-01 on.
    pub fn new(events: u64, seed: u64) -> Self {
        Self {
            events,
            seed,
            duplicates: 0.0,
            disorder: 0.0,
            poison: 0.0,
            conflicts: 0.0,
            lines_only: false,
            first_resource: 0,
            start: Timestamp::constant(DEFAULT_START_SECONDS, 0),
        }
    }

    /// A bound on the time of the last event: the ledger refuses events more
    /// than 24 h ahead of the clock. None beyond the year 9999.
    pub fn latest(&self) -> Option<Timestamp> {
        let micros = u64::try_from(MAX_STEP_MICROS).ok()?.checked_mul(self.events)?;
        self.start.checked_add(Duration::from_micros(micros)).ok()
    }
}

/// Why a workload cannot be generated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadWorkload {
    /// Not a fraction.
    #[error("{name} must be from 0 to 1, not {value}")]
    Fraction { name: &'static str, value: f64 },
    /// Nothing is left for good events.
    #[error("duplicates, poison and conflicts together must be less than 1, not {0}")]
    NoGoodEvents(f64),
    /// Times from 1970 to 9999 are valid.
    #[error("the events would lie outside the years 1970 to 9999; choose another start")]
    Time,
}

/// What a generated message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// An event that no other in the workload repeats or contradicts, or the
    /// original of those that do.
    Unique,
    /// Another copy of a unique event; it may come before it if that one was
    /// delayed.
    Duplicate,
    /// The id of a unique event, with an amount that no other copy has.
    Conflict,
    /// No event.
    Poison(Poison),
}

/// One message to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// The resource, the Kafka key. Poison without a readable resource has none.
    pub key: Option<Arc<str>>,
    /// None is Kafka's null value, a tombstone; never so with `lines_only`.
    pub value: Option<Vec<u8>>,
    /// What it is.
    pub class: Class,
}

/// How many of which class. `unique + duplicates + conflicts + poison = events`,
/// and the ledger must agree: outcomes posted + noted + superseded = unique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Messages in all.
    pub events: u64,
    /// Distinct (type, resource, updatedAt).
    pub unique: u64,
    /// Copies of unique events.
    pub duplicates: u64,
    /// Distinct contradictions.
    pub conflicts: u64,
    /// Messages to be refused.
    pub poison: u64,
    /// The same by class; classes that did not occur are absent.
    pub poison_by_class: BTreeMap<Poison, u64>,
    /// Events that were delayed. They count in their classes too.
    pub out_of_order: u64,
}

impl Summary {
    fn count(&mut self, class: Class) {
        self.events += 1;
        match class {
            Class::Unique => self.unique += 1,
            Class::Duplicate => self.duplicates += 1,
            Class::Conflict => self.conflicts += 1,
            Class::Poison(poison) => {
                self.poison += 1;
                *self.poison_by_class.entry(poison).or_default() += 1;
            }
        }
    }

    fn add(&mut self, other: &Self) {
        let Self { events, unique, duplicates, conflicts, poison, poison_by_class, out_of_order } = other;
        self.events += events;
        self.unique += unique;
        self.duplicates += duplicates;
        self.conflicts += conflicts;
        self.poison += poison;
        self.out_of_order += out_of_order;
        for (class, count) in poison_by_class {
            *self.poison_by_class.entry(*class).or_default() += count;
        }
    }

    /// The poison by the code under which the ledger refuses it.
    pub fn rejections(&self) -> BTreeMap<&'static str, u64> {
        let mut codes = BTreeMap::new();
        for (poison, count) in &self.poison_by_class {
            *codes.entry(poison.code()).or_default() += count;
        }
        codes
    }
}

/// An event that may be repeated or contradicted.
struct Remembered {
    fact: Fact,
    /// So many contradictions exist; the next has yet another amount.
    conflicts: u64,
}

/// The messages of a [`Workload`], one by one.
pub struct Generator {
    workload: Workload,
    rng: ChaCha8Rng,
    nursery: Nursery,
    now: Timestamp,
    /// Resources that wait for their next state, by the number of good events.
    later: Queue<Lifecycle>,
    good: u64,
    /// The last good events, the oldest overwritten first.
    remembered: Vec<Remembered>,
    oldest: usize,
    /// Messages that were delayed, by the number of messages made.
    delayed: Queue<Generated>,
    made: u64,
    too_large_made: bool,
    summary: Summary,
}

impl Generator {
    /// # Errors
    /// [`BadWorkload`], if a number makes no sense.
    pub fn new(workload: Workload) -> Result<Self, BadWorkload> {
        for (name, value) in [
            ("duplicates", workload.duplicates),
            ("disorder", workload.disorder),
            ("poison", workload.poison),
            ("conflicts", workload.conflicts),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(BadWorkload::Fraction { name, value });
            }
        }
        let together = workload.duplicates + workload.poison + workload.conflicts;
        if together >= 1.0 {
            return Err(BadWorkload::NoGoodEvents(together));
        }
        if workload.start < Timestamp::UNIX_EPOCH || workload.latest().is_none() {
            return Err(BadWorkload::Time);
        }
        Ok(Self {
            rng: ChaCha8Rng::seed_from_u64(workload.seed),
            now: workload.start,
            nursery: Nursery::from(workload.first_resource),
            workload,
            later: Queue::default(),
            good: 0,
            remembered: Vec::with_capacity(REMEMBERED),
            oldest: 0,
            delayed: Queue::default(),
            made: 0,
            too_large_made: false,
            summary: Summary::default(),
        })
    }

    /// The counts of the messages handed out so far.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    fn make(&mut self) -> Generated {
        // One draw decides the class, so that the fractions are of all messages.
        let point: f64 = self.rng.random();
        let Workload { duplicates, poison, conflicts, .. } = self.workload;
        if point < poison {
            return self.poison();
        }
        if point < poison + duplicates
            && let Some(copy) = self.duplicate()
        {
            return copy;
        }
        if point >= poison + duplicates
            && point < poison + duplicates + conflicts
            && let Some(contradiction) = self.conflict()
        {
            return contradiction;
        }
        self.unique()
    }

    fn unique(&mut self) -> Generated {
        let place = self.good;
        self.good += 1;
        let lifecycle = match self.later.take_due(place) {
            Some(lifecycle) => lifecycle,
            None => self.nursery.begin(&mut self.rng),
        };
        self.nursery.follow(&lifecycle, &mut self.rng, |wait, item| {
            self.later.push(place + wait, item);
        });
        let fact = self.fact(&lifecycle);
        let json = fact.json(Style::default());
        let key = Arc::clone(&fact.resource);
        self.remember(fact);
        generated(Some(key), json, Class::Unique)
    }

    /// Time moves with each event: no two have the same, so no two good events
    /// have the same id.
    fn fact(&mut self, lifecycle: &Lifecycle) -> Fact {
        let step = self.rng.random_range(1..=MAX_STEP_MICROS);
        // Cannot fail: `new` has checked the latest time possible.
        self.now = self.now.checked_add(jiff::SignedDuration::from_micros(step)).unwrap_or(self.now);
        Fact {
            kind: lifecycle.kind,
            state: lifecycle.state,
            resource: Arc::clone(&lifecycle.resource),
            updated_at: self.now,
            source: if self.rng.random_ratio(2, 3) { "eu-1" } else { "us-1" },
            data: lifecycle.data(),
        }
    }

    fn remember(&mut self, fact: Fact) {
        let remembered = Remembered { fact, conflicts: 0 };
        if self.remembered.len() < REMEMBERED {
            self.remembered.push(remembered);
        } else if let Some(slot) = self.remembered.get_mut(self.oldest) {
            *slot = remembered;
            self.oldest = (self.oldest + 1) % REMEMBERED;
        }
    }

    fn pick_remembered(&mut self) -> Option<&mut Remembered> {
        if self.remembered.is_empty() {
            return None;
        }
        let place = self.rng.random_range(0..self.remembered.len());
        self.remembered.get_mut(place)
    }

    fn duplicate(&mut self) -> Option<Generated> {
        let style = match self.rng.random_range(0..10_u32) {
            0 => Style { spaced: true, ..Style::default() },
            1 => Style { reversed: true, ..Style::default() },
            2 => Style { other_offset: true, spaced: true, reversed: true, source: Some("eu-2") },
            _ => Style::default(),
        };
        let fact = &self.pick_remembered()?.fact;
        Some(generated(Some(Arc::clone(&fact.resource)), fact.json(style), Class::Duplicate))
    }

    fn conflict(&mut self) -> Option<Generated> {
        let remembered = self.pick_remembered()?;
        remembered.conflicts += 1;
        let mut fact = remembered.fact.clone();
        // Differs from the original and from every other contradiction of it.
        fact.data.amount += remembered.conflicts;
        Some(generated(Some(Arc::clone(&fact.resource)), fact.json(Style::default()), Class::Conflict))
    }

    fn poison(&mut self) -> Generated {
        let mut poison = self.choose_poison();
        if poison == Poison::TooLarge && std::mem::replace(&mut self.too_large_made, true) {
            // One megabyte is enough to show it.
            poison = Poison::TooDeep;
        }
        let mut payment = self.nursery.payment(&mut self.rng);
        payment.state = State::Succeeded;
        let fact = self.fact(&payment);
        let key = poison.fits_line().then(|| Arc::clone(&fact.resource));
        Generated { key, value: poison.value(&fact), class: Class::Poison(poison) }
    }

    fn choose_poison(&mut self) -> Poison {
        loop {
            let poison = Poison::ALL[self.rng.random_range(0..Poison::ALL.len())];
            if poison.fits_line() || !self.workload.lines_only {
                return poison;
            }
        }
    }

    fn hand_out(&mut self, message: Generated) -> Generated {
        self.summary.count(message.class);
        message
    }
}

impl Iterator for Generator {
    type Item = Generated;

    fn next(&mut self) -> Option<Generated> {
        loop {
            let finished = self.made == self.workload.events;
            let place = if finished { u64::MAX } else { self.made };
            if let Some(message) = self.delayed.take_due(place) {
                return Some(self.hand_out(message));
            }
            if finished {
                return None;
            }
            let message = self.make();
            self.made += 1;
            if self.workload.disorder == 0.0 || !self.rng.random_bool(self.workload.disorder) {
                return Some(self.hand_out(message));
            }
            self.summary.out_of_order += 1;
            let due = self.made + self.rng.random_range(1..=MAX_DELAY);
            self.delayed.push(due, message);
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.workload.events - self.summary.events).ok();
        (left.unwrap_or(usize::MAX), left)
    }
}

fn generated(key: Option<Arc<str>>, json: String, class: Class) -> Generated {
    Generated { key, value: Some(json.into_bytes()), class }
}

#[cfg(test)]
mod tests;
