//! How long the oldest message without an outcome has been waiting, for each partition that
//! this process holds.
//!
//! Of what a worker has in memory the Kafka timestamps are known. Of what lies before it,
//! in the Kafka client or at the broker, only this is known: it came after the last message
//! that was posted, and after the last moment at which everything was posted. So an age may
//! be told a little too great while a backlog is read; where nothing has been read yet it is
//! told from the claim on.

use crate::batch::Received;
use crate::metrics::Metrics;
use postonce_schema::StreamId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// What waits in the partitions of a process.
#[derive(Default)]
pub struct Unposted(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    partitions: BTreeMap<i32, Waiting>,
    /// How long the topic keeps its messages, if not for ever.
    retention: Option<Duration>,
}

/// What waits in one partition. Times are Kafka's: milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Who has claimed it last.
    worker: usize,
    next_offset: i64,
    /// The oldest message that a worker has had in memory and that has no outcome.
    oldest: Option<i64>,
    /// What has no outcome and was not in memory came after this.
    after: i64,
    /// Whether something before the last stable offset has no outcome.
    behind: bool,
}

/// The Kafka timestamps of a run of messages of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub oldest: i64,
    pub newest: i64,
}

/// The span of each stream. Messages without a timestamp count for nothing.
pub fn spans(received: &[Received<'_>]) -> BTreeMap<StreamId, Span> {
    let mut spans: BTreeMap<StreamId, Span> = BTreeMap::new();
    for message in received.iter().map(|received| &received.message) {
        let Some(time) = message.timestamp else { continue };
        let span = spans.entry(message.at.stream).or_insert(Span { oldest: time, newest: time });
        (span.oldest, span.newest) = (span.oldest.min(time), span.newest.max(time));
    }
    spans
}

impl Unposted {
    /// A worker has claimed a partition. What was known to wait there still does, unless
    /// somebody has posted on meanwhile.
    pub fn claimed(&self, worker: usize, partition: i32, next_offset: i64) {
        let new = Waiting { worker, next_offset, oldest: None, after: now(), behind: false };
        let mut inner = self.lock();
        let held = inner.partitions.entry(partition).or_insert(new);
        *held = if held.next_offset == next_offset { Waiting { worker, ..*held } } else { new };
    }

    /// A worker holds a partition no longer. Whether nobody here does: another worker of this
    /// process may have claimed it already.
    pub fn forget(&self, worker: usize, partition: i32) -> bool {
        let mut inner = self.lock();
        let taken = inner.partitions.get(&partition).is_some_and(|held| held.worker != worker);
        if !taken {
            inner.partitions.remove(&partition);
        }
        !taken
    }

    /// What a worker has claimed in this life or an earlier one, and nobody else since.
    pub fn held_by(&self, worker: usize) -> BTreeSet<i32> {
        let held = |(partition, waiting): (&i32, &Waiting)| (waiting.worker == worker).then_some(*partition);
        self.lock().partitions.iter().filter_map(held).collect()
    }

    /// A worker has these messages of a partition in memory.
    pub fn received(&self, partition: i32, span: Span) {
        if let Some(held) = self.lock().partitions.get_mut(&partition) {
            held.oldest = Some(span.oldest);
        }
    }

    /// The messages before `next_offset` have an outcome; `posted` are those of the batch,
    /// `left` those that the worker still has in memory.
    pub fn committed(&self, partition: i32, next_offset: i64, posted: Option<Span>, left: Option<Span>) {
        if let Some(held) = self.lock().partitions.get_mut(&partition) {
            held.next_offset = next_offset;
            held.oldest = left.map(|span| span.oldest);
            held.after = held.after.max(posted.map_or(held.after, |span| span.newest));
        }
    }

    /// Nobody could read further than to this offset when the brokers were asked.
    pub fn ends_at(&self, partition: i32, last_stable: i64, asked: i64) {
        if let Some(held) = self.lock().partitions.get_mut(&partition) {
            held.behind = last_stable > held.next_offset;
            if !held.behind {
                held.after = held.after.max(asked);
            }
        }
    }

    /// How long the topic keeps its messages, if not for ever.
    pub fn retention(&self, retention: Option<Duration>) {
        self.lock().retention = retention;
    }

    /// Sets the gauges to this moment.
    pub fn show(&self, metrics: &Metrics, topic: &str) {
        let inner = self.lock();
        let now = now();
        for (partition, held) in &inner.partitions {
            let labels = [topic, &partition.to_string()];
            let age = held.age(now);
            metrics.oldest_unposted.with_label_values(&labels).set(age.as_secs_f64());
            match inner.retention {
                Some(time) => {
                    let margin = time.as_secs_f64() - age.as_secs_f64();
                    metrics.retention_margin.with_label_values(&labels).set(margin);
                }
                // It may never have been set.
                None => drop(metrics.retention_margin.remove_label_values(&labels)),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// A timestamp in the future, or a clock that was set back, makes no negative age.
    fn age(&self, now: i64) -> Duration {
        let oldest = self.oldest.or(self.behind.then_some(self.after));
        let age = oldest.map_or(0, |oldest| now.saturating_sub(oldest));
        Duration::from_millis(u64::try_from(age).unwrap_or_default())
    }
}

/// By this machine's clock, as Kafka counts. Ages are for people: nothing is decided by them.
pub fn now() -> i64 {
    let passed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(passed.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(unposted: &Unposted, partition: i32) -> Waiting {
        unposted.lock().partitions[&partition]
    }

    /// Its age in seconds, a hundred seconds after the partition was claimed.
    fn age(unposted: &Unposted, claimed: i64) -> u64 {
        waiting(unposted, 0).age(claimed + 100_000).as_secs()
    }

    #[test]
    fn the_oldest_in_memory_counts_and_else_what_came_after_the_last_that_was_posted() {
        let unposted = Unposted::default();
        unposted.claimed(0, 0, 5);
        let claimed = waiting(&unposted, 0).after;
        let span =
            |oldest: i64, newest: i64| Span { oldest: claimed + oldest * 1_000, newest: claimed + newest * 1_000 };
        assert_eq!(age(&unposted, claimed), 0, "nothing is known to wait");
        unposted.ends_at(0, 9, claimed);
        assert_eq!(age(&unposted, claimed), 100, "something does, and nobody knows its age");
        unposted.received(0, span(-50, 20));
        assert_eq!(age(&unposted, claimed), 150);
        unposted.committed(0, 7, Some(span(-50, 10)), Some(span(15, 20)));
        assert_eq!(age(&unposted, claimed), 85);
        unposted.committed(0, 8, Some(span(15, 20)), None);
        assert_eq!(age(&unposted, claimed), 80, "what is left came after it");
        unposted.ends_at(0, 8, claimed + 90_000);
        assert_eq!(age(&unposted, claimed), 0);
        unposted.ends_at(0, 9, claimed + 91_000);
        assert_eq!(age(&unposted, claimed), 10, "it came after everything was posted");
        unposted.received(0, span(200, 200));
        assert_eq!(age(&unposted, claimed), 0, "of the future");
    }

    #[test]
    fn what_waits_is_known_to_the_next_life_unless_somebody_has_posted_on() {
        let unposted = Unposted::default();
        unposted.claimed(0, 0, 5);
        unposted.received(0, Span { oldest: 1, newest: 1 });
        unposted.claimed(0, 0, 5);
        assert_eq!(waiting(&unposted, 0).oldest, Some(1));
        unposted.claimed(0, 0, 6);
        assert_eq!(waiting(&unposted, 0).oldest, None);
    }

    #[test]
    fn only_the_last_owner_takes_a_partition_away() {
        let unposted = Unposted::default();
        unposted.claimed(0, 0, 5);
        unposted.claimed(0, 1, 5);
        unposted.claimed(1, 0, 5);
        assert!(!unposted.forget(0, 0));
        assert_eq!((unposted.held_by(0), unposted.held_by(1)), (BTreeSet::from([1]), BTreeSet::from([0])));
        assert!(unposted.forget(1, 0) && unposted.forget(1, 0), "it may be gone already");
        assert_eq!(unposted.held_by(1), BTreeSet::new());
    }
}
