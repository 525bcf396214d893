//! What the brokers say when they are asked: which topic this is, and where the log of each
//! partition begins and ends.
//!
//! A worker cannot well ask itself. On its connection a question waits behind the fetch
//! that waits for messages; and a partition that is not fetched any more looks to it like
//! one that has nothing. So one thread asks for the whole process, over connections of
//! its own.

use crate::claim::Lineage;
use crate::config::Kafka;
use crate::reread::Quiet;
use crate::topic;
use crate::unposted::{self, Unposted};
use rdkafka::Offset;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::TopicPartitionList;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the brokers are asked: a question of the topic's id, and three of the ends, each
/// a millisecond.
///
/// librdkafka keeps its offset when a topic is deleted and made again, and nothing else
/// tells. What the new one has behind that offset and brings within this second is posted
/// (seen), once, under the old one's offsets. Read again from its start it is a duplicate,
/// so nothing is lost or doubled, but the old stream's message chain is that of no topic.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long they may take. What they said before stands until then.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Both ends of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The first offset that retention has left.
    pub log_start: i64,
    /// The next offset of the log, and with that of open transactions too.
    pub high_watermark: i64,
    /// Before this offset every transaction has ended. Nobody reads beyond it.
    pub last_stable: i64,
}

/// What was last said of the topic, and of the partitions that this process holds.
#[derive(Default)]
pub struct Observed(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    lineage: Option<(Lineage, Instant)>,
    ends: BTreeMap<i32, Option<Seen>>,
}

/// The ends of one partition as they were last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub ends: Ends,
    /// How long the last stable offset has been standing still behind the end.
    pub held_for: Duration,
    /// When the last stable offset was first seen here, or last with nothing behind it.
    since: Instant,
}

impl Observed {
    /// Which topic it was, and when.
    pub fn lineage(&self) -> Option<(Lineage, Instant)> {
        self.lock().lineage.clone()
    }

    /// A worker wants to know of this partition from now on.
    pub fn want(&self, partition: i32) {
        self.lock().ends.entry(partition).or_default();
    }

    /// Nobody here holds it any more.
    pub fn forget(&self, partition: i32) {
        self.lock().ends.remove(&partition);
    }

    /// Where the log of a partition begins and ends.
    pub fn ends(&self, partition: i32) -> Option<Seen> {
        self.lock().ends.get(&partition).copied().flatten()
    }

    fn wanted(&self) -> Vec<i32> {
        self.lock().ends.keys().copied().collect()
    }

    fn note(&self, partition: i32, now: Ends, at: Instant) {
        // It may have been revoked while the brokers were asked.
        if let Some(slot) = self.lock().ends.get_mut(&partition) {
            *slot = Some(see(*slot, now, at));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn see(before: Option<Seen>, now: Ends, at: Instant) -> Seen {
    let since = match before {
        Some(seen) if now.high_watermark > now.last_stable && seen.ends.last_stable == now.last_stable => seen.since,
        _ => at,
    };
    Seen { ends: now, held_for: at.duration_since(since), since }
}

/// Asks until the process ends. Blocks its thread.
pub fn observe(kafka: &Kafka, observed: &Observed, unposted: &Unposted, stop: &AtomicBool) {
    let (all, stable) = match (client(kafka, "read_uncommitted"), client(kafka, "read_committed")) {
        (Ok(all), Ok(stable)) => (all, stable),
        (Err(error), _) | (_, Err(error)) => {
            tracing::error!(%error, "nobody asks where the partitions end");
            return;
        }
    };
    while !stop.load(Ordering::Relaxed) {
        match topic::lineage(stable.client(), &kafka.topic, kafka.unidentified_topic) {
            Ok(lineage) => observed.lock().lineage = Some((lineage, Instant::now())),
            Err(error) => tracing::debug!(%error, "nobody says which topic this is"),
        }
        let asked = unposted::now();
        match ask_ends(&kafka.topic, &all, &stable, observed) {
            Ok(ends) => ends.iter().for_each(|(partition, end)| unposted.ends_at(*partition, *end, asked)),
            Err(error) => tracing::debug!(%error, "nobody says where the partitions end"),
        }
        // Serves what the clients tell of themselves; it would pile up.
        while all.poll(Duration::ZERO).is_some() || stable.poll(Duration::ZERO).is_some() {}
        std::thread::sleep(ASK_EVERY);
    }
}

fn client(kafka: &Kafka, isolation: &str) -> KafkaResult<BaseConsumer<Quiet>> {
    let mut config = kafka.client_config();
    config.set("isolation.level", isolation);
    // The user's is for the workers: nobody takes these reports, and they would pile up.
    config.set("statistics.interval.ms", "0");
    BaseConsumer::from_config_and_context(&config, Quiet)
}

/// Notes both ends of each partition that is wanted. The last stable offsets.
fn ask_ends(
    topic: &str,
    all: &BaseConsumer<Quiet>,
    stable: &BaseConsumer<Quiet>,
    observed: &Observed,
) -> KafkaResult<BTreeMap<i32, i64>> {
    let wanted = observed.wanted();
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    // The stable offsets first: what is appended between the two answers then looks like
    // more behind them for once, and never like less.
    let starts = ends(all, topic, Offset::Beginning, &wanted)?;
    let stable = ends(stable, topic, Offset::End, &wanted)?;
    let all = ends(all, topic, Offset::End, &wanted)?;
    let at = Instant::now();
    for (&partition, &last_stable) in &stable {
        if let (Some(&log_start), Some(&high_watermark)) = (starts.get(&partition), all.get(&partition)) {
            observed.note(partition, Ends { log_start, high_watermark, last_stable }, at);
        }
    }
    Ok(stable)
}

/// One end of each partition, as far as this client's isolation lets it see.
fn ends(client: &BaseConsumer<Quiet>, topic: &str, end: Offset, partitions: &[i32]) -> KafkaResult<BTreeMap<i32, i64>> {
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for partition in partitions {
        list.add_partition_offset(topic, *partition, end)?;
    }
    let found = client.offsets_for_times(list, ANSWER_WITHIN)?;
    let mut ends = BTreeMap::new();
    for element in found.elements() {
        if let (Ok(()), Offset::Offset(end)) = (element.error(), element.offset()) {
            ends.insert(element.partition(), end);
        }
    }
    Ok(ends)
}

/// How long nothing has come of a partition that has something to read.
#[derive(Debug, Clone, Default)]
pub struct Stillness {
    next_offset: i64,
    still: Duration,
}

impl Stillness {
    /// To be told regularly. `turned` is how long the worker has been turning since it was
    /// told last: while it stands still elsewhere nothing can come.
    pub fn look(&mut self, next_offset: i64, last_stable: i64, turned: Duration) -> Duration {
        if next_offset != self.next_offset || last_stable <= next_offset {
            *self = Self { next_offset, still: Duration::ZERO };
        } else {
            self.still = self.still.saturating_add(turned);
        }
        self.still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_open_transaction_holds_the_stable_offset() {
        let begin = Instant::now();
        let at = |seconds: u32| begin + SECOND * seconds;
        let ends = |high_watermark, last_stable| Ends { log_start: 0, high_watermark, last_stable };
        let first = see(None, ends(10, 10), at(0));
        let opened = see(Some(first), ends(12, 10), at(5));
        assert_eq!(opened.held_for, SECOND * 5, "it may have been open since it was last asked");
        let grown = see(Some(opened), ends(20, 10), at(9));
        assert_eq!((grown.ends, grown.held_for), (ends(20, 10), SECOND * 9));
        let moved = see(Some(grown), ends(20, 15), at(10));
        assert_eq!(moved.held_for, Duration::ZERO);
        assert_eq!(see(Some(moved), ends(20, 20), at(11)).held_for, Duration::ZERO);
    }

    #[test]
    fn a_partition_stands_still_only_while_it_has_something() {
        let mut partition = Stillness::default();
        assert_eq!(partition.look(5, 9, SECOND), Duration::ZERO, "seen for the first time");
        assert_eq!(partition.look(5, 9, SECOND), SECOND);
        assert_eq!(partition.look(5, 12, SECOND), SECOND * 2);
        assert_eq!(partition.look(6, 12, SECOND), Duration::ZERO, "something came");
        assert_eq!(partition.look(6, 12, SECOND), SECOND);
        assert_eq!(partition.look(6, 6, SECOND), Duration::ZERO, "there is nothing more");
        assert_eq!(partition.look(6, 7, SECOND), SECOND);
    }
}
