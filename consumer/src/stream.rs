//! A worker's side of Kafka: what has been assigned to it, and what is waiting.
#![allow(unsafe_code, reason = "raw bindings to librdkafka: what rdkafka has no safe call for")]

use crate::batch::{Position, Positions};
use crate::claim::{Claim, Claims, Lineage};
use crate::config::{BATCH_BYTES, Kafka};
use crate::kafka_statistics::Statistics;
use crate::message::{At, Message};
use postonce_schema::{Header, StreamId};
use rdkafka::Message as _;
use rdkafka::Offset;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::base_consumer::BaseConsumer;
use rdkafka::consumer::{CommitMode, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use rdkafka::types::RDKafkaRespErr;
use rdkafka_sys as sys;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long librdkafka may take to give a partition up.
const FORGET_TIMEOUT: Duration = Duration::from_secs(5);

/// A Kafka consumer of one topic.
pub struct Stream {
    consumer: BaseConsumer<Rebalances>,
    topic: String,
    /// An error that came behind messages. They are applied first.
    failed: Cell<Option<KafkaError>>,
}

/// Partitions that have come and gone since the worker last looked.
#[derive(Debug, Default)]
pub struct Moves {
    /// Assigned by the group, but not read before [`Stream::assign`].
    pub assigned: BTreeSet<i32>,
    /// Given up. One that has come back since stands in both: what was read of it
    /// before will be read again.
    pub revoked: BTreeSet<i32>,
    /// When the group first said so.
    pub assigned_at: Option<Instant>,
    pub rebalances: u64,
}

/// Notes what the group assigns and revokes.
///
/// Nothing is assigned here: a partition is read only once its stream has been
/// claimed and its offset is known, and for that the worker needs the database.
/// librdkafka waits for the call, and goes on with its heartbeats.
#[derive(Default)]
struct Rebalances {
    topic: String,
    group: Mutex<Group>,
    /// The last error in librdkafka's words. They name the offset; its code does not.
    words: Mutex<String>,
    /// What it last measured of itself, until somebody takes it.
    statistics: Mutex<Option<Statistics>>,
}

#[derive(Default)]
struct Group {
    moves: Moves,
    /// What has been assigned, and so can be unassigned.
    held: BTreeSet<i32>,
    /// The group has answered once, be it with nothing.
    joined: bool,
    /// librdkafka waits for the call that assigns. Until it comes, the group does not
    /// go on and the client cannot be closed.
    awaited: bool,
}

impl Rebalances {
    fn of(kafka: &Kafka) -> Self {
        Self { topic: kafka.topic.clone(), ..Self::default() }
    }

    fn group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self) -> MutexGuard<'_, String> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn statistics(&self) -> MutexGuard<'_, Option<Statistics>> {
        self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Rebalances {
    fn stats_raw(&self, json: &[u8]) {
        match Statistics::read(json, &self.topic) {
            Ok(report) => *self.statistics() = Some(report),
            Err(error) => tracing::debug!(target: "librdkafka", %error, "its statistics cannot be read"),
        }
    }

    /// Comes just before the poll that returns the same error.
    fn error(&self, error: KafkaError, reason: &str) {
        let mut words = self.words();
        // While no broker is there it says so ten times a second.
        if *words == reason {
            tracing::debug!(target: "librdkafka", %error, "{reason}");
        } else {
            tracing::warn!(target: "librdkafka", %error, "{reason}");
            reason.clone_into(&mut words);
        }
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        use RDKafkaLogLevel::{Alert, Critical, Emerg, Error, Info, Notice, Warning};
        match level {
            // Kafka's copy of the offset is for lag tools: in a rebalance it may be refused.
            _ if facility == "COMMITFAIL" => tracing::debug!(target: "librdkafka", facility, "{message}"),
            Emerg | Alert | Critical | Error => tracing::error!(target: "librdkafka", facility, "{message}"),
            Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
            Notice | Info => tracing::info!(target: "librdkafka", facility, "{message}"),
            RDKafkaLogLevel::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
        }
    }
}

impl ConsumerContext for Rebalances {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, code: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let partitions = list.elements().iter().map(|element| element.partition()).collect::<BTreeSet<i32>>();
        let mut group = self.group();
        group.moves.rebalances += 1;
        let answered = if code == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            group.joined = true;
            if partitions.is_empty() {
                // A rebalance that brings nothing new still waits for the call.
                assign(consumer, list)
            } else {
                group.moves.assigned.extend(partitions);
                group.moves.assigned_at.get_or_insert_with(Instant::now);
                group.awaited = true;
                Ok(())
            }
        } else {
            // What was noted but not assigned yet cannot be unassigned.
            let mut held = TopicPartitionList::new();
            for element in list.elements() {
                if group.held.remove(&element.partition()) {
                    held.add_partition(element.topic(), element.partition());
                }
            }
            group.moves.assigned.retain(|partition| !partitions.contains(partition));
            group.moves.revoked.extend(partitions);
            // The group goes on only when the partitions are given up.
            match consumer.rebalance_protocol() {
                RebalanceProtocol::Cooperative => consumer.incremental_unassign(&held),
                _ => consumer.unassign(),
            }
        };
        if let Err(error) = answered {
            tracing::warn!(%error, "the Kafka client did not take a rebalance");
        }
    }
}

fn assign(consumer: &BaseConsumer<Rebalances>, list: &TopicPartitionList) -> KafkaResult<()> {
    match consumer.rebalance_protocol() {
        RebalanceProtocol::Cooperative => consumer.incremental_assign(list),
        _ => consumer.assign(list),
    }
}

/// Closing waits for the group, and the group for the call that assigns.
impl Drop for Stream {
    fn drop(&mut self) {
        let (awaited, idle) = {
            let mut group = self.consumer.context().group();
            (std::mem::take(&mut group.awaited), group.held.is_empty())
        };
        if awaited {
            if let Err(error) = assign(&self.consumer, &TopicPartitionList::new()) {
                tracing::warn!(%error, "the Kafka client did not take an empty assignment");
            }
        } else if idle {
            // At its close a classic member that holds nothing does not say that it leaves
            // (librdkafka 2.12): the group would stand still until its session has ended.
            self.consumer.unsubscribe();
        }
    }
}

/// Ends a poll early, from any thread.
pub struct Interrupt(ptr::NonNull<sys::rd_kafka_queue_t>);

// SAFETY: librdkafka locks its queues itself.
unsafe impl Send for Interrupt {}

impl Interrupt {
    /// The poll that is under way, or the next one, ends with nothing.
    pub fn end_poll(&self) {
        // SAFETY: the queue lives until this handle is dropped.
        unsafe { sys::rd_kafka_queue_yield(self.0.as_ptr()) }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // SAFETY: it is this handle's own reference, and nobody uses it after this.
        unsafe { sys::rd_kafka_queue_destroy(self.0.as_ptr()) }
    }
}

impl Stream {
    /// Whether a client can be made with these properties. Connects to nobody.
    pub fn check(kafka: &Kafka) -> KafkaResult<()> {
        BaseConsumer::from_config_and_context(&kafka.consumer_config(), Rebalances::of(kafka)).map(drop)
    }

    /// Joins the group.
    pub fn subscribe(kafka: &Kafka) -> KafkaResult<Self> {
        let consumer = BaseConsumer::from_config_and_context(&kafka.consumer_config(), Rebalances::of(kafka))?;
        consumer.subscribe(&[&kafka.topic])?;
        Ok(Self { consumer, topic: kafka.topic.clone(), failed: Cell::new(None) })
    }

    /// For another thread. It must be dropped before the stream is.
    pub fn interrupt(&self) -> KafkaResult<Interrupt> {
        // SAFETY: the client lives as long as `self`.
        let queue = unsafe { sys::rd_kafka_queue_get_consumer(self.consumer.client().native_ptr()) };
        let none = || KafkaError::ClientCreation("the client has no consumer's queue".to_owned());
        ptr::NonNull::new(queue).map(Interrupt).ok_or_else(none)
    }

    /// The lineage of the topic's offsets, as the brokers tell it now.
    pub fn lineage(&self, unidentified: bool) -> Result<Lineage, crate::topic::TopicError> {
        crate::topic::lineage(self.consumer.client(), &self.topic, unidentified)
    }

    /// The first offset of the log and the one that comes next.
    pub fn watermarks(&self, partition: i32) -> KafkaResult<(i64, i64)> {
        self.consumer.fetch_watermarks(&self.topic, partition, crate::topic::ASK_TIMEOUT)
    }

    /// The next offset of the log as the last fetch told it; asks nobody.
    pub fn known_log_end(&self, partition: i32) -> Option<i64> {
        let topic = CString::new(self.topic.as_str()).ok()?;
        let (mut low, mut high) = (-1, -1);
        // SAFETY: the client lives as long as `self`; the name ends with a zero byte.
        let code = unsafe {
            let client = self.consumer.client().native_ptr();
            sys::rd_kafka_get_watermark_offsets(client, topic.as_ptr(), partition, &mut low, &mut high)
        };
        (code == RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR && high >= 0).then_some(high)
    }

    /// What the group has moved since the last call.
    pub fn take_moves(&self) -> Moves {
        std::mem::take(&mut self.consumer.context().group().moves)
    }

    /// What the client has measured of itself since the last call, if it is time.
    pub fn take_statistics(&self) -> Option<Statistics> {
        self.consumer.context().statistics().take()
    }

    /// Whether the group has answered, be it with nothing.
    pub fn joined(&self) -> bool {
        self.consumer.context().group().joined
    }

    /// Waits until the group has answered for the first time. A member that closes before is
    /// known to the coordinator by its id and never comes: the group stands still until its
    /// session has ended. What is polled meanwhile is nobody's: it is read again.
    pub fn wait_until_joined(&self, at_most: Duration) -> KafkaResult<()> {
        let until = Instant::now() + at_most;
        while !self.joined() && Instant::now() < until {
            self.consumer.poll(Duration::from_millis(20)).transpose()?;
        }
        Ok(())
    }

    /// Begins to read what has been claimed, each partition from its claim's offset.
    pub fn assign(&self, claims: &[Claim]) -> KafkaResult<()> {
        let list = self.places(claims)?;
        self.wait_until_forgotten(&list)?;
        // A partition that was revoked while it was paused would come back paused, and rest
        // for ever.
        self.consumer.resume(&list)?;
        assign(&self.consumer, &list)?;
        let mut group = self.consumer.context().group();
        group.held.extend(claims.iter().map(|claim| claim.partition));
        group.awaited = false;
        drop(group);
        self.validate(claims)
    }

    /// Has the broker asked whether it still has what stands before these offsets, under
    /// the leader that the ledger has read it from: after an unclean election others'
    /// messages may stand there. librdkafka asks when the leader changes under it and at a
    /// seek, and never at an assignment. What it has fetched before the seek it forgets,
    /// and until the answer it fetches nothing; where the log was cut off the next poll
    /// says so.
    fn validate(&self, claims: &[Claim]) -> KafkaResult<()> {
        let known: Vec<Claim> = claims.iter().filter(|claim| claim.leader_epoch.is_some()).cloned().collect();
        let began = Instant::now();
        loop {
            if known.is_empty() {
                return Ok(());
            }
            let sought = self.consumer.seek_partitions(self.places(&known)?, FORGET_TIMEOUT)?;
            let failed = sought.elements().iter().find_map(|element| element.error().err());
            match failed {
                None => return Ok(()),
                // An assignment takes effect in the background.
                Some(_) if began.elapsed() < FORGET_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
                Some(error) => return Err(error),
            }
        }
    }

    /// The offsets of these claims, each with the epoch of its leader.
    fn places(&self, claims: &[Claim]) -> KafkaResult<TopicPartitionList> {
        let mut list = TopicPartitionList::with_capacity(claims.len());
        for claim in claims {
            list.add_partition_offset(&self.topic, claim.partition, Offset::Offset(claim.next_offset))?;
        }
        for (element, claim) in native(&list).iter().zip(claims) {
            // SAFETY: the element belongs to `list`, which nobody else has.
            unsafe {
                let element = ptr::from_ref(element).cast_mut();
                sys::rd_kafka_topic_partition_set_leader_epoch(element, claim.leader_epoch.unwrap_or(-1));
            }
        }
        Ok(list)
    }

    /// librdkafka gives partitions up in the background and keeps its position in them
    /// until then. A position left over from before would pass for one of the new
    /// assignment, and the messages up to it for a hole: they would be lost.
    fn wait_until_forgotten(&self, list: &TopicPartitionList) -> KafkaResult<()> {
        let began = Instant::now();
        loop {
            let position = list.clone();
            // SAFETY: client and list live as long as the call.
            unsafe { sys::rd_kafka_position(self.consumer.client().native_ptr(), position.ptr()) };
            if position.elements().iter().all(|element| !matches!(element.offset(), Offset::Offset(_))) {
                return Ok(());
            }
            if began.elapsed() > FORGET_TIMEOUT {
                return Err(KafkaError::Subscription("a revoked partition was not given up in time".to_owned()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Adds what is waiting, at most `most` messages or 8 MB. Waits up to `patience`
    /// for the first, not at all for the others: a quiet topic is answered at once,
    /// a busy one fills its batches by itself. What came before an error is handed out
    /// first: otherwise a batch that cannot be read would keep the good ones before it
    /// from being posted. After an error nothing more is polled, for librdkafka may have
    /// skipped what it was about.
    pub fn fill<'s>(
        &'s self,
        waiting: &mut Vec<BorrowedMessage<'s>>,
        most: usize,
        patience: Duration,
    ) -> Result<(), KafkaError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut bytes = 0usize;
        let mut timeout = patience;
        while waiting.len() < most && bytes < BATCH_BYTES {
            match self.consumer.poll(timeout) {
                None => break,
                Some(Err(error)) if waiting.is_empty() => return Err(error),
                Some(Err(error)) => {
                    self.failed.set(Some(error));
                    break;
                }
                Some(Ok(message)) => {
                    bytes = bytes.saturating_add(message.payload_len()).saturating_add(message.key_len());
                    waiting.push(message);
                }
            }
            timeout = Duration::ZERO;
        }
        Ok(())
    }

    /// Serves the group while no messages are wanted.
    pub fn serve(&self, patience: Duration) -> KafkaResult<Option<BorrowedMessage<'_>>> {
        self.consumer.poll(patience).transpose()
    }

    /// Where the client stands in each claimed stream: past transaction markers and
    /// aborted messages too, which never come as messages.
    pub fn positions(&self, lineage: &Lineage) -> KafkaResult<Positions> {
        let list = self.consumer.position()?;
        // Logical offsets are negative: nothing has been read there yet.
        let known = native(&list).iter().filter(|element| element.offset >= 0);
        let position = |element: &sys::rd_kafka_topic_partition_t| {
            // SAFETY: the element belongs to `list`.
            let epoch = unsafe { sys::rd_kafka_topic_partition_get_leader_epoch(element) };
            let position = Position { offset: element.offset, leader_epoch: known_epoch(epoch) };
            (lineage.stream(element.partition), position)
        };
        Ok(known.map(position).collect())
    }

    pub fn pause(&self) -> KafkaResult<()> {
        self.consumer.pause(&self.consumer.assignment()?)
    }

    pub fn resume(&self) -> KafkaResult<()> {
        self.consumer.resume(&self.consumer.assignment()?)
    }

    /// Tells Kafka how far the ledger is, for lag tools only: nothing reads it back.
    pub fn tell_offsets(&self, claims: &Claims, mode: CommitMode) -> KafkaResult<()> {
        let mut list = TopicPartitionList::with_capacity(claims.len());
        for claim in claims.values() {
            list.add_partition_offset(&self.topic, claim.partition, Offset::Offset(claim.next_offset))?;
        }
        if list.count() == 0 { Ok(()) } else { self.consumer.commit(&list, mode) }
    }

    /// The last error in librdkafka's own words.
    pub fn words(&self) -> String {
        self.consumer.context().words().clone()
    }

    /// An error from which this client instance cannot recover.
    pub fn fatal_error(&self) -> Option<String> {
        self.consumer.client().fatal_error().map(|(code, text)| format!("{code}: {text}"))
    }
}

/// The elements of a list as librdkafka has them, leader epochs included.
fn native(list: &TopicPartitionList) -> &[sys::rd_kafka_topic_partition_t] {
    // SAFETY: the list owns its elements, as many as it says, and lives as long as the
    // borrow. An empty one may have none at all.
    unsafe {
        let list = &*list.ptr();
        match usize::try_from(list.cnt) {
            Ok(count) if count > 0 => std::slice::from_raw_parts(list.elems, count),
            _ => &[],
        }
    }
}

/// librdkafka says -1 where the log keeps no epochs.
fn known_epoch(epoch: i32) -> Option<i32> {
    (epoch >= 0).then_some(epoch)
}

/// A message as the ledger sees it; its bytes stay where they are.
pub fn message<'m>(borrowed: &'m BorrowedMessage<'_>, stream: StreamId) -> Message<'m> {
    Message {
        at: At { stream, offset: borrowed.offset() },
        key: borrowed.key(),
        value: borrowed.payload(),
        headers: headers(borrowed),
        timestamp: borrowed.timestamp().to_millis(),
        // SAFETY: the message lives as long as 'm.
        leader_epoch: known_epoch(unsafe { sys::rd_kafka_message_leader_epoch(borrowed.ptr()) }),
    }
}

/// rdkafka's own accessor panics where a header's name is not UTF-8: one such
/// message would stop its partition for ever.
fn headers<'m>(borrowed: &'m BorrowedMessage<'_>) -> Vec<Header<'m>> {
    let mut found = Vec::new();
    let mut list = ptr::null_mut();
    // SAFETY: the message lives as long as 'm and owns its headers, and a header's
    // name ends with a zero byte. A null value has no bytes.
    unsafe {
        let none = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR;
        if sys::rd_kafka_message_headers(borrowed.ptr(), &mut list) != none || list.is_null() {
            return found;
        }
        let (mut name, mut value, mut size) = (ptr::null(), ptr::null(), 0);
        while sys::rd_kafka_header_get_all(list, found.len(), &mut name, &mut value, &mut size) == none {
            let value = (!value.is_null()).then(|| std::slice::from_raw_parts(value.cast::<u8>(), size));
            found.push(Header { name: CStr::from_ptr(name).to_bytes(), value });
        }
    }
    found
}
