//! Reads a stretch of the topic again, from one offset to another.
//!
//! It joins no group and commits no offset, so it may run beside the live consumers
//! and takes nothing from them. What it reads is what they read: the same isolation,
//! the same checksums, and no offset skipped in silence.

use crate::claim::Lineage;
use crate::config::{BATCH_BYTES, GroupProtocol, Kafka};
use crate::heard::{self, Heard};
use crate::topic::{self, ASK_TIMEOUT, TopicError};
use postonce_schema::Timestamp;
use rdkafka::Message as _;
use rdkafka::Offset;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The brokers may be silent for so long before the reading is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one look for messages waits for the first.
const LOOK: Duration = Duration::from_millis(100);
/// The pause before a question is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// Why the topic could not be read again.
#[derive(Debug, thiserror::Error)]
pub enum RereadError {
    #[error(transparent)]
    Topic(#[from] TopicError),
    #[error("Kafka: {0}")]
    Kafka(#[from] KafkaError),
    #[error("topic {0} has no partition {1}")]
    NoPartition(String, i32),
    #[error(
        "nothing of partition {partition} has come from offset {offset} on for {PATIENCE:?}; are the brokers \
         reachable, and is a transaction open there?"
    )]
    Silent { partition: i32, offset: i64 },
}

/// What is still to be read: for each partition the next offset and the end, exclusive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<i32, (i64, i64)>);

impl Ranges {
    /// A range that is empty or turned round is none.
    pub fn new(ranges: impl IntoIterator<Item = (i32, i64, i64)>) -> Self {
        Self(ranges.into_iter().filter(|(_, from, to)| from < to).map(|(p, from, to)| (p, (from, to))).collect())
    }

    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// How many offsets are left.
    pub fn left(&self) -> u64 {
        self.iter().map(|(_, from, to)| to.abs_diff(from)).sum()
    }

    /// Partition, next offset, end.
    pub fn iter(&self) -> impl Iterator<Item = (i32, i64, i64)> + '_ {
        self.0.iter().map(|(partition, (from, to))| (*partition, *from, *to))
    }

    /// Shares the partitions out among at most `workers`, the longest first, each to whom
    /// has least so far. None of the shares is empty.
    pub fn split(self, workers: usize) -> Vec<Self> {
        let mut longest: Vec<(i32, (i64, i64))> = self.0.into_iter().collect();
        longest.sort_by_key(|(_, (from, to))| std::cmp::Reverse(to - from));
        let mut shares = vec![Self::default(); workers.max(1)];
        for (partition, range) in longest {
            if let Some(least) = shares.iter_mut().min_by_key(|share| share.left()) {
                least.0.insert(partition, range);
            }
        }
        shares.retain(|share| !share.is_done());
        shares
    }

    /// Whether it lies within what is to be read.
    fn wants(&self, partition: i32, offset: i64) -> bool {
        self.0.get(&partition).is_some_and(|(_, to)| offset < *to)
    }

    /// Notes where the reading stands; true when that ends the partition.
    fn advance(&mut self, partition: i32, position: i64) -> bool {
        let Some((from, to)) = self.0.get_mut(&partition) else { return false };
        *from = position.min(*to).max(*from);
        let ended = *from == *to;
        if ended {
            self.0.remove(&partition);
        }
        ended
    }
}

/// Messages in the order of their offsets, partition by partition as they came.
pub struct Stretch<'s> {
    pub messages: Vec<BorrowedMessage<'s>>,
    /// Where the reading stands in each partition, past transaction markers and aborted
    /// messages too, and never past the end of what was asked for.
    pub positions: BTreeMap<i32, i64>,
}

/// A topic that can be read again.
pub struct Source {
    consumer: BaseConsumer<Heard>,
    topic: String,
    lineage: Lineage,
}

/// Says what librdkafka says for those who search, and to nobody else.
pub(crate) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "librdkafka", ?level, facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "librdkafka", %error, "{reason}");
    }
}

impl ConsumerContext for Quiet {}

impl Source {
    /// Connects, and asks which topic this is.
    pub fn open(kafka: &Kafka) -> Result<Self, RereadError> {
        let kafka = Kafka {
            // librdkafka wants a name for a group even where none is joined.
            group: format!("postonce-reread-{:016x}", rand::random::<u64>()),
            protocol: GroupProtocol::Classic,
            ..kafka.clone()
        };
        let consumer = BaseConsumer::from_config_and_context(&kafka.consumer_config(), Heard::default())?;
        let lineage = topic::lineage(consumer.client(), &kafka.topic, kafka.unidentified_topic);
        let lineage = lineage.map_err(|error| error.because(|| heard::complaint(&consumer)))?;
        Ok(Self { consumer, topic: kafka.topic, lineage })
    }

    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The topic's partitions, in order.
    pub fn partitions(&self) -> Result<Vec<i32>, RereadError> {
        let metadata = patiently(|| self.consumer.fetch_metadata(Some(&self.topic), ASK_TIMEOUT))?;
        let mut partitions: Vec<i32> =
            metadata.topics().iter().flat_map(|topic| topic.partitions()).map(|partition| partition.id()).collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    /// The first offset of the log and its last stable one, exclusive: behind that a
    /// transaction may still be open.
    pub fn bounds(&self, partition: i32) -> Result<(i64, i64), RereadError> {
        Ok(patiently(|| self.consumer.fetch_watermarks(&self.topic, partition, ASK_TIMEOUT))?)
    }

    /// The first offset whose message has this Kafka timestamp or a later one; none where
    /// all are earlier.
    pub fn offset_at(&self, partition: i32, time: Timestamp) -> Result<Option<i64>, RereadError> {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(&self.topic, partition, Offset::Offset(time.micros().div_euclid(1000)))?;
        let found = patiently(|| self.consumer.offsets_for_times(list.clone(), ASK_TIMEOUT))?;
        let element = found.find_partition(&self.topic, partition);
        let element = element.ok_or_else(|| RereadError::NoPartition(self.topic.clone(), partition))?;
        element.error()?;
        Ok(match element.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        })
    }

    /// Begins to read these ranges. Their first offsets must still be in the log.
    pub fn seek(&self, ranges: &Ranges) -> Result<(), RereadError> {
        let mut list = TopicPartitionList::with_capacity(ranges.0.len());
        for (partition, from, _) in ranges.iter() {
            list.add_partition_offset(&self.topic, partition, Offset::Offset(from))?;
        }
        Ok(self.consumer.assign(&list)?)
    }

    /// The next messages of these ranges, at most `most` or 8 MB; none in a quiet moment.
    /// `ranges` shrinks with what was read. An error of any partition ends the reading.
    pub fn next(&self, ranges: &mut Ranges, most: usize) -> Result<Stretch<'_>, RereadError> {
        let mut messages = Vec::new();
        let (mut bytes, mut timeout) = (0usize, LOOK);
        while messages.len() < most && bytes < BATCH_BYTES {
            let Some(message) = self.consumer.poll(timeout) else { break };
            let message = message?;
            timeout = Duration::ZERO;
            bytes = bytes.saturating_add(message.payload_len()).saturating_add(message.key_len());
            if ranges.wants(message.partition(), message.offset()) {
                messages.push(message);
            }
        }
        let positions = self.advance(ranges)?;
        Ok(Stretch { messages, positions })
    }

    fn advance(&self, ranges: &mut Ranges) -> Result<BTreeMap<i32, i64>, RereadError> {
        let (mut positions, mut ended) = (BTreeMap::new(), TopicPartitionList::new());
        for element in self.consumer.position()?.elements() {
            let (partition, Offset::Offset(position)) = (element.partition(), element.offset()) else { continue };
            let Some((_, to)) = ranges.0.get(&partition) else { continue };
            positions.insert(partition, position.min(*to));
            if ranges.advance(partition, position) {
                ended.add_partition(&self.topic, partition);
            }
        }
        if ended.count() > 0 {
            // Otherwise it would be fetched on and on to the end of the log.
            self.consumer.pause(&ended)?;
        }
        Ok(positions)
    }
}

/// A broker that has just come back, or a leader that has just moved, cannot be asked yet.
fn patiently<T>(ask: impl Fn() -> KafkaResult<T>) -> KafkaResult<T> {
    let began = Instant::now();
    loop {
        match ask() {
            Err(_) if began.elapsed() < ASK_TIMEOUT => std::thread::sleep(ASK_AGAIN),
            answer => return answer,
        }
    }
}

/// Gives a reading up that has stood still for too long.
pub struct Watch {
    left: u64,
    since: Instant,
}

impl Watch {
    pub fn start(ranges: &Ranges) -> Self {
        Self { left: ranges.left(), since: Instant::now() }
    }

    /// To be called after each [`Source::next`].
    pub fn check(&mut self, ranges: &Ranges) -> Result<(), RereadError> {
        if ranges.left() < self.left {
            *self = Self::start(ranges);
        }
        match ranges.iter().next() {
            Some((partition, offset, _)) if self.since.elapsed() > PATIENCE => {
                Err(RereadError::Silent { partition, offset })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_shared_out_evenly() {
        let ranges = Ranges::new([(0, 0, 10), (1, 5, 5), (2, 0, 100), (3, 0, 60), (4, 0, 30), (5, 9, 3)]);
        assert_eq!(ranges.left(), 200);
        let shares = ranges.split(2);
        let partitions: Vec<Vec<i32>> = shares.iter().map(|share| share.iter().map(|(p, ..)| p).collect()).collect();
        assert_eq!(partitions, [vec![2], vec![0, 3, 4]]);
        assert_eq!(Ranges::new([(0, 0, 1)]).split(8).len(), 1);
        assert!(Ranges::default().split(3).is_empty());
    }

    #[test]
    fn a_range_ends_where_it_was_asked_to() {
        let mut ranges = Ranges::new([(0, 5, 10), (1, 0, 4)]);
        assert!(ranges.wants(0, 9) && !ranges.wants(0, 10) && !ranges.wants(2, 0));
        assert!(!ranges.advance(0, 7));
        assert!(!ranges.advance(0, 6), "a position that has not moved takes nothing back");
        assert_eq!(ranges.left(), 7);
        assert!(ranges.advance(0, 12));
        assert!(!ranges.advance(0, 12), "it has ended once");
        assert!(ranges.advance(1, 4) && ranges.is_done());
    }
}
