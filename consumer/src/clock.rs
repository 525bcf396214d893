//! A machine's clock that is set back while the process runs.
//!
//! Nothing here is decided by the wall clock, but librdkafka waits by it: a wait that is under way
//! lasts longer by as much as the clock is set back, for hours or days. So the polls are
//! interrupted, and every worker begins anew, with a new client.

use crate::stream::Interrupt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A wait may last so much longer.
const TOLERATED: Duration = Duration::from_secs(2);

/// Compares the wall clock with one that nobody can set.
pub struct Clock {
    wall: SystemTime,
    steady: Instant,
}

impl Clock {
    pub fn now() -> Self {
        Self { wall: SystemTime::now(), steady: Instant::now() }
    }

    /// How far the wall clock was set back since the last look, if that is worth a word.
    pub fn set_back(&mut self) -> Option<Duration> {
        let now = Self::now();
        let before = std::mem::replace(self, now);
        back(before.wall, self.wall, self.steady.duration_since(before.steady))
    }
}

fn back(before: SystemTime, now: SystemTime, passed: Duration) -> Option<Duration> {
    before.checked_add(passed)?.duration_since(now).ok().filter(|back| *back > TOLERATED)
}

/// The polls of a process's workers.
#[derive(Default)]
pub struct Polls {
    running: Mutex<BTreeMap<usize, Interrupt>>,
    interrupted: AtomicU64,
}

impl Polls {
    /// A worker polls, until what is returned is dropped.
    pub fn of(&self, worker: usize, interrupt: Interrupt) -> Poll<'_> {
        self.running().insert(worker, interrupt);
        Poll { polls: self, worker, interrupted: self.interrupted.load(Ordering::SeqCst) }
    }

    /// Ends every poll that is under way.
    pub fn interrupt(&self) {
        self.interrupted.fetch_add(1, Ordering::SeqCst);
        self.running().values().for_each(Interrupt::end_poll);
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<usize, Interrupt>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker's polls in one life.
pub struct Poll<'p> {
    polls: &'p Polls,
    worker: usize,
    interrupted: u64,
}

impl Poll<'_> {
    pub fn was_interrupted(&self) -> bool {
        self.polls.interrupted.load(Ordering::SeqCst) != self.interrupted
    }
}

/// The client must not end before nobody can interrupt it any more.
impl Drop for Poll<'_> {
    fn drop(&mut self) {
        self.polls.running().remove(&self.worker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_was_set_back_is_told() {
        let second = Duration::from_secs(1);
        let (then, day) = (SystemTime::now(), second * 86_400);
        assert_eq!(back(then, then + second, second), None);
        assert_eq!(back(then, then + day, second), None, "forward: a wait ends early");
        assert_eq!(back(then, then, second * 2), None, "a little slower");
        assert_eq!(back(then, then - day, second), Some(day + second));
    }
}
