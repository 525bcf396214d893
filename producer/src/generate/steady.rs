//! Workloads without end, at a steady rate: what a dashboard is looked at with.

use super::{BadWorkload, Generated, Generator, MAX_STEP_MICROS, Summary, Workload};
use jiff::{SignedDuration, Timestamp};
use std::num::NonZeroU32;
use std::thread;
use std::time::{Duration, Instant};

/// So many events stand in one workload: with 0.2 s between them they are of the last half hour.
const EVENTS: u64 = 5_000;
/// How long it sleeps at most before it looks whether it is wanted any more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// When the next of so many a second is due.
pub struct Pace {
    per_second: NonZeroU32,
    begun: Instant,
    handed_out: u64,
}

impl Pace {
    pub fn new(per_second: NonZeroU32) -> Self {
        Self { per_second, begun: Instant::now(), handed_out: 0 }
    }

    /// Sleeps until the next is due; false as soon as it is `unwanted`. Who falls behind
    /// catches up: the rate is one over the whole time.
    pub fn wait(&mut self, unwanted: impl Fn() -> bool) -> bool {
        let due = Duration::from_secs(self.handed_out) / self.per_second.get();
        self.handed_out += 1;
        loop {
            if unwanted() {
                return false;
            }
            let left = due.saturating_sub(self.begun.elapsed());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }
}

/// One workload after the other, each with the next seed, of the time just before it begins.
pub struct Steady {
    now: Workload,
    generator: Generator,
    before: Summary,
}

impl Steady {
    /// With the fractions of this one, beginning with its seed.
    ///
    /// # Errors
    /// [`BadWorkload`], if a fraction makes no sense.
    pub fn new(like: Workload) -> Result<Self, BadWorkload> {
        let seed = like.seed.wrapping_sub(1);
        let now = next_after(Workload { seed, ..like });
        Ok(Self { generator: Generator::new(now.clone())?, now, before: Summary::default() })
    }

    /// The counts of the messages handed out so far.
    pub fn summary(&self) -> Summary {
        let mut all = self.before.clone();
        all.add(self.generator.summary());
        all
    }
}

impl Iterator for Steady {
    type Item = Generated;

    fn next(&mut self) -> Option<Generated> {
        if let Some(event) = self.generator.next() {
            return Some(event);
        }
        self.before = self.summary();
        self.now = next_after(self.now.clone());
        // Cannot fail: the first one has not, and only time and numbers are others.
        self.generator = Generator::new(self.now.clone()).ok()?;
        self.generator.next()
    }
}

/// The next workload. It must end before now, and by the time it has resources of its own,
/// also where somebody has begun with the same seed before.
fn next_after(before: Workload) -> Workload {
    let longest = SignedDuration::from_micros(MAX_STEP_MICROS) * i32::try_from(EVENTS).unwrap_or(i32::MAX);
    let start = Timestamp::now().checked_sub(longest).unwrap_or(before.start);
    let by_time = u64::try_from(start.as_microsecond()).unwrap_or(0);
    let first_resource = by_time.max(before.first_resource.saturating_add(EVENTS));
    Workload { events: EVENTS, seed: before.seed.wrapping_add(1), start, first_resource, ..before }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Class;
    use std::collections::HashSet;

    #[test]
    fn one_workload_follows_the_other_and_none_repeats_its_resources() {
        let like = Workload { poison: 0.1, ..Workload::new(1, 7) };
        let mut steady = Steady::new(like).unwrap();
        let resources = |events: Vec<Generated>| -> HashSet<String> {
            let unique = events.into_iter().filter(|event| matches!(event.class, Class::Unique));
            unique.filter_map(|event| event.key).map(|key| key.to_string()).collect()
        };
        let first = resources(steady.by_ref().take(5_000).collect());
        let second = resources(steady.by_ref().take(5_000).collect());
        assert!(first.len() > 1_000 && second.len() > 1_000);
        assert_eq!(first.intersection(&second).count(), 0);
        let summary = steady.summary();
        assert_eq!(summary.events, 10_000);
        assert_eq!(summary.unique + summary.poison, 10_000);
        assert_eq!(summary.rejections().values().sum::<u64>(), summary.poison);
    }

    #[test]
    fn a_pace_is_kept_and_given_up() {
        let mut pace = Pace::new(NonZeroU32::new(1_000).unwrap());
        let begun = Instant::now();
        assert!((0..50).all(|_| pace.wait(|| false)));
        assert!(begun.elapsed() >= Duration::from_millis(49), "the fiftieth is due after 49 ms");
        let mut slow = Pace::new(NonZeroU32::MIN);
        assert!(slow.wait(|| false), "the first is due at once");
        assert!(!slow.wait(|| true));
    }
}
