//! Raw messages into a topic, byte for byte as a test wants them, and out again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rdkafka::client::ClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, DeliveryResult, Header, Headers, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use rdkafka::{Offset, TopicPartitionList};

use crate::parts::unique;
use crate::wait::wait_until;

const LIMIT: Duration = Duration::from_secs(60);

/// One message, as sent or as read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    pub key: Option<Vec<u8>>,
    /// `None` is a tombstone.
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since 1970; the time of sending if not given.
    pub timestamp: Option<i64>,
    /// By the hash of the key if not given.
    pub partition: Option<i32>,
    /// Only of a message that was read.
    pub offset: Option<i64>,
}

impl Message {
    pub fn new(value: impl Into<Vec<u8>>) -> Self {
        Self { value: Some(value.into()), ..Self::default() }
    }

    pub fn tombstone() -> Self {
        Self::default()
    }

    pub fn key(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        self.headers.push((name.to_owned(), Some(value.into())));
        self
    }

    pub fn timestamp(mut self, milliseconds: i64) -> Self {
        self.timestamp = Some(milliseconds);
        self
    }

    pub fn partition(mut self, partition: i32) -> Self {
        self.partition = Some(partition);
        self
    }
}

/// Sends messages and waits for each one's delivery.
pub struct Sender {
    producer: ThreadedProducer<Deliveries>,
}

impl Sender {
    /// Compressed with `codec`: none, gzip, snappy, lz4 or zstd.
    pub fn new(bootstrap: &str, codec: &str) -> Result<Self> {
        Self::with(bootstrap, &[("compression.type", codec)])
    }

    /// With any properties of librdkafka.
    pub fn with(bootstrap: &str, properties: &[(&str, &str)]) -> Result<Self> {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap)
            .set("acks", "all")
            .set("linger.ms", "5")
            .set("message.max.bytes", "16777216")
            .set("partitioner", "murmur2_random");
        for (key, value) in properties {
            config.set(*key, *value);
        }
        Ok(Self { producer: config.create_with_context(Deliveries::default())? })
    }

    /// Sends all and waits; the partition and offset of each, in order.
    pub fn send(&self, topic: &str, messages: impl IntoIterator<Item = Message>) -> Result<Vec<(i32, i64)>> {
        let mut count = 0;
        for message in messages {
            self.hand_over(topic, &message, count)?;
            count += 1;
        }
        self.producer.flush(LIMIT)?;
        let mut arrived = std::mem::take(&mut *self.producer.context().lock());
        (0..count)
            .map(|index| {
                let delivery = arrived.remove(&index).with_context(|| format!("message {index} was not delivered"))?;
                delivery.with_context(|| format!("message {index} was refused"))
            })
            .collect()
    }

    fn hand_over(&self, topic: &str, message: &Message, index: usize) -> Result<()> {
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, index);
        record.key = message.key.as_deref();
        record.payload = message.value.as_deref();
        record.timestamp = message.timestamp;
        record.partition = message.partition;
        if !message.headers.is_empty() {
            let headers = message
                .headers
                .iter()
                .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: value.as_deref() }));
            record.headers = Some(headers);
        }
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back))
                    if Instant::now() < deadline =>
                {
                    record = back;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err((error, _)) => return Err(error).with_context(|| format!("cannot send message {index}")),
            }
        }
    }
}

type Arrived = BTreeMap<usize, Result<(i32, i64), KafkaError>>;

#[derive(Default, Clone)]
struct Deliveries(Arc<Mutex<Arrived>>);

impl Deliveries {
    fn lock(&self) -> std::sync::MutexGuard<'_, Arrived> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let place = match result {
            Ok(message) => Ok((message.partition(), message.offset())),
            Err((error, _)) => Err(error.clone()),
        };
        self.lock().insert(index, place);
    }
}

/// An open Kafka transaction. Dropped without an end it stays open until the
/// broker's time-out, as that of a producer that was killed.
pub struct Transaction {
    sender: Sender,
}

impl Transaction {
    pub fn begin(bootstrap: &str) -> Result<Self> {
        Self::begin_with_timeout(bootstrap, LIMIT)
    }

    /// The broker aborts it after this time.
    pub fn begin_with_timeout(bootstrap: &str, timeout: Duration) -> Result<Self> {
        let id = format!("{}-{}", unique("transaction"), std::process::id());
        let milliseconds = timeout.as_millis().to_string();
        let sender = Sender::with(
            bootstrap,
            &[
                ("transactional.id", &id),
                ("transaction.timeout.ms", &milliseconds),
                // May not be longer than the transaction's.
                ("message.timeout.ms", &milliseconds),
            ],
        )?;
        sender.producer.init_transactions(LIMIT)?;
        sender.producer.begin_transaction()?;
        Ok(Self { sender })
    }

    pub fn send(&self, topic: &str, messages: impl IntoIterator<Item = Message>) -> Result<Vec<(i32, i64)>> {
        self.sender.send(topic, messages)
    }

    pub fn commit(self) -> Result<()> {
        Ok(self.sender.producer.commit_transaction(LIMIT)?)
    }

    pub fn abort(self) -> Result<()> {
        Ok(self.sender.producer.abort_transaction(LIMIT)?)
    }
}

/// The end of the log of each partition, markers of transactions included.
pub fn end_offsets(bootstrap: &str, topic: &str) -> Result<Vec<i64>> {
    let probe: BaseConsumer = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
    partitions(&probe, topic)?.into_iter().map(|partition| Ok(watermarks(&probe, topic, partition)?.1)).collect()
}

/// Where the log of a partition begins and ends. Asks again: a new topic, or a broker that
/// has just started, may have no leader yet.
pub(crate) fn watermarks(probe: &BaseConsumer, topic: &str, partition: i32) -> Result<(i64, i64)> {
    wait_until(LIMIT, "the watermarks of a partition", || Ok(Some(probe.fetch_watermarks(topic, partition, LIMIT)?)))
}

/// Every message that a `read_committed` reader finds in the topic now,
/// partition by partition.
pub fn read_all(bootstrap: &str, topic: &str) -> Result<Vec<Message>> {
    let reader: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", unique("read-all"))
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("isolation.level", "read_committed")
        .set("check.crcs", "true")
        // The end of a partition is told by a fetch that finds nothing: it need not wait.
        .set("fetch.wait.max.ms", "10")
        .set("fetch.message.max.bytes", "16777216")
        .create()?;
    let partitions = partitions(&reader, topic)?;
    let mut from_start = TopicPartitionList::new();
    for partition in &partitions {
        from_start.add_partition_offset(topic, *partition, Offset::Beginning)?;
    }
    reader.assign(&from_start)?;
    let deadline = Instant::now() + LIMIT;
    let (mut ended, mut found) = (0, Vec::new());
    while ended < partitions.len() {
        ensure!(Instant::now() < deadline, "topic {topic} was not read in {} s", LIMIT.as_secs());
        match reader.poll(Duration::from_millis(100)) {
            None => {}
            Some(Ok(message)) => found.push(owned(&message)),
            Some(Err(KafkaError::PartitionEOF(_))) => ended += 1,
            // A broker is away, or a connection was slow: librdkafka tries again.
            Some(Err(KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::OperationTimedOut,
            ))) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
    found.sort_by_key(|message| (message.partition, message.offset));
    Ok(found)
}

fn partitions(client: &BaseConsumer, topic: &str) -> Result<Vec<i32>> {
    let metadata = client.fetch_metadata(Some(topic), LIMIT)?;
    let mut ids: Vec<i32> =
        metadata.topics().iter().flat_map(|topic| topic.partitions()).map(|partition| partition.id()).collect();
    ids.sort_unstable();
    ensure!(!ids.is_empty(), "there is no topic {topic}");
    Ok(ids)
}

fn owned(message: &BorrowedMessage<'_>) -> Message {
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    });
    Message {
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers,
        timestamp: message.timestamp().to_millis(),
        partition: Some(message.partition()),
        offset: Some(message.offset()),
    }
}
