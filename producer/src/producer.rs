//! The producer: acknowledged by all replicas, idempotent, bounded in memory,
//! and every event accounted for.
#![allow(unsafe_code, reason = "raw bindings to librdkafka: rdkafka takes no header name that is not UTF-8")]

use std::borrow::Cow;
use std::ptr;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};
use rdkafka_sys as sys;

use crate::delivery::{Deliveries, DeliveryFailure, Report, Waited, describe};
use crate::envelope::Encoded;
use crate::error::Error;
use crate::generate::Generated;
use postonce_schema::Header;

/// How to reach the topic, and how much may be under way. Not Debug: properties hold
/// passwords.
#[derive(Clone)]
pub struct Config {
    /// Bootstrap servers, `host:port[,host:port…]`.
    pub brokers: String,
    /// The topic that every message goes to.
    pub topic: String,
    /// Events unconfirmed at one time; at this number `send` waits.
    pub max_in_flight: usize,
    /// librdkafka properties, set last: they override the ones chosen here.
    pub properties: Vec<(String, String)>,
}

impl Config {
    /// 50,000 events in flight, no further properties.
    pub fn new(brokers: impl Into<String>, topic: impl Into<String>) -> Self {
        Self { brokers: brokers.into(), topic: topic.into(), max_in_flight: 50_000, properties: Vec::new() }
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "postonce")
            .set("acks", "all")
            .set("enable.idempotence", "true")
            // As in Java's clients, so that all producers of a topic agree
            // which partition a key belongs to.
            .set("partitioner", "murmur2_random")
            .set("compression.type", "lz4")
            .set("linger.ms", "5")
            // An event is given up after two minutes, as in Java's clients;
            // librdkafka's five look like a hang.
            .set("message.timeout.ms", "120000")
            // The bound in bytes (64 MiB), for events of unusual size; the
            // bound in events is `max_in_flight`.
            .set("queue.buffering.max.kbytes", "65536")
            .set("queue.buffering.max.messages", "1000000")
            // What is too large, the broker says; one that allows more than
            // the usual 1 MB must not be contradicted by its client.
            .set("message.max.bytes", "10000000");
        for (key, value) in &self.properties {
            client.set(key, value);
        }
        client
    }
}

/// The headers of a message, in their order.
#[derive(Clone, Copy, Debug)]
pub enum Headers<'a> {
    /// Of an event that was written here.
    Text(&'a [(&'static str, Cow<'a, str>)]),
    /// As they were read from Kafka: a name need not be UTF-8, a value may be null.
    Bytes(&'a [Header<'a>]),
}

/// One Kafka message. Its timestamp is not set: Kafka's retention works by it,
/// so it is the time of sending and never the time of the event.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Decides the partition; none: any partition.
    pub key: Option<&'a [u8]>,
    /// This partition, whatever the key.
    pub partition: Option<i32>,
    /// None is Kafka's null value, a tombstone.
    pub value: Option<&'a [u8]>,
    pub headers: Headers<'a>,
    /// Comes back with a [`DeliveryFailure`]: a line number, a place in a list.
    pub tag: usize,
}

impl Headers<'_> {
    /// None where there are none.
    fn to_kafka(self) -> Option<OwnedHeaders> {
        let empty = OwnedHeaders::new();
        match self {
            Self::Text([]) | Self::Bytes([]) => return None,
            Self::Text(list) => {
                list.iter().for_each(|(name, value)| add(&empty, name.as_bytes(), Some(value.as_bytes())))
            }
            Self::Bytes(list) => list.iter().for_each(|header| add(&empty, header.name, header.value)),
        }
        Some(empty)
    }
}

impl<'a> Message<'a> {
    /// The message of an encoded event.
    pub fn of(encoded: &'a Encoded<'_>, tag: usize) -> Self {
        let headers = Headers::Text(&encoded.headers);
        Self { key: Some(encoded.key.as_bytes()), partition: None, value: Some(&encoded.value), headers, tag }
    }
}

/// Sends messages to one topic. Safe to share between threads.
///
/// Retries are librdkafka's own: a request that failed in passing is sent
/// again after 100 ms, doubling up to 1 s, until the message is 120 s old
/// (`retry.backoff.ms`, `retry.backoff.max.ms`, `message.timeout.ms`). With
/// idempotence the broker drops a repeat that it already has, so a retry
/// neither doubles nor reorders within a partition. An event that was given up
/// may be sent again: the ledger knows it by its id.
///
/// Dropping it gives up what is not confirmed; [`flush`](Self::flush) first.
pub struct Producer {
    client: ThreadedProducer<Deliveries>,
    topic: String,
    brokers: String,
    max_in_flight: usize,
}

impl Producer {
    /// Connects in the background; see [`check`](Self::check).
    ///
    /// # Errors
    /// [`Error::Config`] if a property is unknown or contradicts another, such
    /// as `acks=1` with idempotence.
    pub fn new(config: &Config) -> Result<Self, Error> {
        let client = config.client().create_with_context(Deliveries::default()).map_err(Error::Config)?;
        Ok(Self {
            client,
            topic: config.topic.clone(),
            brokers: config.brokers.clone(),
            max_in_flight: config.max_in_flight.max(1),
        })
    }

    /// Asks the cluster for the topic, so that a wrong address is named at
    /// once and not after the first event's two minutes.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no broker answers in time.
    pub fn check(&self, timeout: Duration) -> Result<(), Error> {
        match self.client.client().fetch_metadata(Some(&self.topic), timeout) {
            Ok(_) => Ok(()),
            Err(error) => {
                // "Connection refused" says more than "transport failure".
                let reason = self.deliveries().last_error().unwrap_or_else(|| describe(&error));
                Err(Error::Unreachable { brokers: self.brokers.clone(), timeout, reason })
            }
        }
    }

    /// Which cluster this is, and how many partitions the topic has there.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if no broker answers in time, [`Error::Topic`] if the topic
    /// is not there.
    pub fn destination(&self, timeout: Duration) -> Result<(String, usize), Error> {
        self.check(timeout)?;
        let unreachable = |reason: String| Error::Unreachable { brokers: self.brokers.clone(), timeout, reason };
        let client = self.client.client();
        let metadata = client.fetch_metadata(Some(&self.topic), timeout);
        let metadata = metadata.map_err(|error| unreachable(describe(&error)))?;
        let partitions = metadata.topics().iter().map(|topic| topic.partitions().len()).sum();
        if partitions == 0 {
            return Err(Error::Topic { topic: self.topic.clone(), reason: "it is not on this cluster".to_owned() });
        }
        let cluster = client.fetch_cluster_id(timeout).ok_or_else(|| unreachable("no cluster id".to_owned()))?;
        Ok((cluster, partitions))
    }

    /// Queues a message. While too much is under way (`max_in_flight` events
    /// or 64 MiB) it waits; this is the back-pressure. What the client refuses
    /// at once (such as an event over 10 MB) counts as failed, with its reason.
    ///
    /// # Errors
    /// [`Error::Fatal`] if the client has failed for good, [`Error::Topic`] if
    /// the topic is not there or not allowed. Events sent before keep counting.
    pub fn send(&self, message: Message<'_>) -> Result<(), Error> {
        let deliveries = self.deliveries();
        let in_flight = deliveries.in_flight();
        if in_flight >= self.max_in_flight {
            // A quarter is made free at once: to wake for every single
            // confirmation would cost more than the sending.
            self.make_room(self.max_in_flight - self.max_in_flight.div_ceil(4))?;
        }
        let mut record = self.record(message);
        loop {
            deliveries.begin();
            match self.client.send(record) {
                Ok(()) => return Ok(()),
                Err((error, returned)) => {
                    if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                        return self.refused(message.tag, &error);
                    }
                    deliveries.forget();
                    record = returned;
                    self.make_room(deliveries.in_flight() / 2)?;
                }
            }
        }
    }

    /// Waits until every event is confirmed or given up, and says how many.
    ///
    /// # Errors
    /// [`Error::FlushTimeout`] if some are still under way (they stay so, and
    /// a later flush may find them confirmed); [`Error::Fatal`].
    pub fn flush(&self, timeout: Duration) -> Result<Report, Error> {
        match self.deliveries().wait(0, timeout) {
            // The last events' failures may be told before the fatal error that
            // made them fail.
            Waited::Reached => match self.fatal() {
                Some(reason) => Err(Error::Fatal(reason)),
                None => Ok(self.report()),
            },
            Waited::TimedOut(in_flight) => Err(Error::FlushTimeout { in_flight, timeout }),
            Waited::Fatal(reason) => Err(Error::Fatal(reason)),
        }
    }

    /// The counts so far.
    pub fn report(&self) -> Report {
        self.deliveries().report()
    }

    /// Events sent and not yet confirmed or given up.
    pub fn in_flight(&self) -> usize {
        self.deliveries().in_flight()
    }

    /// Takes the failures kept since the last call. At most 1,000 are kept;
    /// who needs the reason of each takes them as it sends.
    pub fn take_failures(&self) -> Vec<DeliveryFailure> {
        self.deliveries().take_failures()
    }

    fn record<'a>(&'a self, message: Message<'a>) -> BaseRecord<'a, [u8], [u8], usize> {
        let mut record = BaseRecord::with_opaque_to(&self.topic, message.tag);
        record.key = message.key;
        record.partition = message.partition;
        record.payload = message.value;
        record.headers = message.headers.to_kafka();
        record
    }

    fn refused(&self, tag: usize, error: &KafkaError) -> Result<(), Error> {
        let reason = describe(error);
        match error.rdkafka_error_code() {
            Some(
                RDKafkaErrorCode::UnknownTopic
                | RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::TopicAuthorizationFailed,
            ) => {
                self.deliveries().forget();
                Err(Error::Topic { topic: self.topic.clone(), reason })
            }
            Some(RDKafkaErrorCode::Fatal) => {
                self.deliveries().forget();
                Err(Error::Fatal(self.fatal().unwrap_or(reason)))
            }
            _ => {
                self.deliveries().end(tag, Some(reason));
                Ok(())
            }
        }
    }

    /// Waits without an end of its own: each event is confirmed or given up
    /// after `message.timeout.ms`, so room always comes.
    fn make_room(&self, target: usize) -> Result<(), Error> {
        loop {
            match self.deliveries().wait(target, Duration::from_secs(1)) {
                Waited::Reached => return Ok(()),
                Waited::TimedOut(_) => {}
                Waited::Fatal(reason) => return Err(Error::Fatal(reason)),
            }
        }
    }

    fn fatal(&self) -> Option<String> {
        self.client.client().fatal_error().map(|(_, reason)| reason)
    }

    fn deliveries(&self) -> &Deliveries {
        self.client.client().context()
    }
}

/// rdkafka takes only names that are UTF-8; Kafka carries others, and what is sent again
/// must be what came.
fn add(headers: &OwnedHeaders, name: &[u8], value: Option<&[u8]>) {
    let length = |bytes: &[u8]| isize::try_from(bytes.len()).unwrap_or(isize::MAX);
    let (value, value_length) = value.map_or((ptr::null(), 0), |value| (value.as_ptr(), length(value)));
    // SAFETY: rdkafka's borrowed form of headers is librdkafka's own list, seen through a
    // pointer of another type; this one is ours alone and not shared yet. librdkafka copies
    // both byte strings, and a slice is never longer than isize.
    unsafe {
        let list = ptr::from_ref(headers.as_borrowed()).cast_mut().cast::<sys::rd_kafka_headers_t>();
        // It cannot fail: the list is no message's.
        sys::rd_kafka_header_add(list, name.as_ptr().cast(), length(name), value.cast(), value_length);
    }
}

/// Sends a workload, flushes, and reports. `progress` is told the number of
/// events sent so far, after each 1,000 and at the end. The tag of an event is
/// its place in the workload, from 0.
///
/// To stop early, end the iterator; what was sent is still flushed. The report
/// counts from the producer's beginning, so give it a producer of its own.
///
/// # Errors
/// Those of [`Producer::send`] and [`Producer::flush`]. Events that Kafka did
/// not take are no error here: see [`Report::failed`].
pub fn send_all(
    producer: &Producer,
    events: impl Iterator<Item = Generated>,
    mut progress: impl FnMut(u64),
) -> Result<Report, Error> {
    let mut sent = 0_u64;
    for (tag, event) in events.enumerate() {
        producer.send(Message {
            key: event.key.as_deref().map(str::as_bytes),
            partition: None,
            value: event.value.as_deref(),
            headers: Headers::Text(&[]),
            tag,
        })?;
        sent += 1;
        if sent.is_multiple_of(1_000) {
            progress(sent);
        }
    }
    // Longer than an event's own two minutes: each is settled by then.
    let report = producer.flush(Duration::from_secs(150))?;
    progress(sent);
    Ok(report)
}

#[cfg(test)]
#[path = "producer_tests.rs"]
mod tests;
