use std::time::Instant;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

use super::*;
use crate::envelope::{Encoding, Envelope};
use crate::generate::{Generator, Workload};

const SOON: Duration = Duration::from_secs(20);

fn cluster() -> (MockCluster<'static, DefaultProducerContext>, Config) {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("payments", 4, 1).unwrap();
    let config = Config::new(cluster.bootstrap_servers(), "payments");
    (cluster, config)
}

fn message(tag: usize) -> Message<'static> {
    Message { key: Some(b"stripe/acct_1/pi_1"), partition: None, value: Some(b"{}"), headers: Headers::Text(&[]), tag }
}

fn with(mut config: Config, properties: &[(&str, &str)]) -> Config {
    config.properties = properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    config
}

#[test]
fn every_event_of_a_workload_is_confirmed() {
    let (_cluster, config) = cluster();
    let producer = Producer::new(&config).unwrap();
    producer.check(SOON).unwrap();
    let workload = Workload { poison: 0.05, duplicates: 0.1, disorder: 0.1, ..Workload::new(20_000, 1) };
    let mut told = 0;
    let report = send_all(&producer, Generator::new(workload).unwrap(), |sent| told = sent).unwrap();
    assert_eq!(report, Report { sent: 20_000, delivered: 20_000, failed: 0, failures: Vec::new() });
    assert_eq!((told, producer.in_flight()), (20_000, 0));
}

#[test]
fn back_pressure_bounds_what_is_in_flight() {
    let (cluster, mut config) = cluster();
    cluster.broker_round_trip_time(-1, Duration::from_millis(20)).unwrap();
    config.max_in_flight = 40;
    let producer = Producer::new(&config).unwrap();
    for tag in 0..400 {
        producer.send(message(tag)).unwrap();
        assert!(producer.in_flight() <= 40);
    }
    assert_eq!(producer.flush(SOON).unwrap().delivered, 400);
}

/// librdkafka's own queue is smaller than ours: its "queue full" is waited out.
#[test]
fn a_full_queue_is_waited_for() {
    let (_cluster, config) = cluster();
    let producer = Producer::new(&with(config, &[("queue.buffering.max.messages", "10")])).unwrap();
    for tag in 0..200 {
        producer.send(message(tag)).unwrap();
    }
    let report = producer.flush(SOON).unwrap();
    assert_eq!((report.sent, report.delivered), (200, 200));
}

#[test]
fn an_event_that_is_given_up_is_named() {
    let (cluster, config) = cluster();
    let config = with(config, &[("message.timeout.ms", "3000"), ("message.max.bytes", "2000")]);
    let producer = Producer::new(&config).unwrap();
    producer.send(message(1)).unwrap();
    producer.flush(SOON).unwrap();
    // Refused by the client at once.
    producer.send(Message { value: Some(&[b'x'; 4000]), ..message(2) }).unwrap();
    // Given up after its time.
    cluster.broker_down(-1).unwrap();
    producer.send(message(3)).unwrap();
    let report = producer.flush(SOON).unwrap();
    assert_eq!((report.sent, report.delivered, report.failed), (3, 1, 2));
    let failures = producer.take_failures();
    assert_eq!(failures.iter().map(|failure| failure.tag).collect::<Vec<_>>(), [2, 3]);
    assert!(failures[0].reason.contains("MessageSizeTooLarge"), "{failures:?}");
    assert!(failures[1].reason.contains("timed out"), "{failures:?}");
    assert!(producer.take_failures().is_empty());
}

/// Without an idempotent session nothing can be promised: the client gives up
/// for good, and neither `send` nor `flush` may look like success.
#[test]
fn a_fatal_error_ends_it() {
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

    let (cluster, config) = cluster();
    let refusals = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED; 10];
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &refusals);
    let producer = Producer::new(&config).unwrap();
    producer.send(message(1)).unwrap();
    let error = producer.flush(SOON).unwrap_err();
    assert!(matches!(error, Error::Fatal(_)), "{error}");
    let error = producer.send(message(2)).unwrap_err();
    assert!(matches!(error, Error::Fatal(_)), "{error}");
    assert_eq!(producer.report().delivered, 0);
}

#[test]
fn a_flush_that_runs_out_of_time_says_how_many_are_under_way() {
    let (cluster, config) = cluster();
    let producer = Producer::new(&config).unwrap();
    cluster.broker_down(-1).unwrap();
    producer.send(message(1)).unwrap();
    let started = Instant::now();
    let error = producer.flush(Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, Error::FlushTimeout { in_flight: 1, .. }), "{error}");
    assert!(started.elapsed() < SOON);
}

#[test]
fn a_wrong_address_and_a_wrong_property_are_named() {
    let producer = Producer::new(&Config::new("127.0.0.1:1", "payments")).unwrap();
    let error = producer.check(Duration::from_millis(500)).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("refused"), "{error}");

    let (_cluster, config) = cluster();
    for property in [("no.such", "1"), ("acks", "1")] {
        let error = Producer::new(&with(config.clone(), &[property])).err().unwrap();
        assert!(matches!(error, Error::Config(_)), "{error}");
        assert!(error.to_string().contains(property.0), "{error}");
    }
}

#[test]
fn headers_key_and_partition_arrive() {
    use rdkafka::consumer::{BaseConsumer, Consumer};
    use rdkafka::message::{Headers as _, Message as _};

    let (_cluster, config) = cluster();
    let producer = Producer::new(&config).unwrap();
    let json = br#"{"type":"fee.charged","resource":"stripe/a/b","updatedAt":"2026-01-01T00:00:00Z","data":{}}"#;
    let envelope = Envelope::parse(json).unwrap();
    let encoded = envelope.encode(Encoding::CloudEventsBinary).unwrap();
    producer.send(Message::of(&encoded, 0)).unwrap();
    producer.send(Message { value: None, ..Message::of(&encoded, 1) }).unwrap();
    producer.flush(SOON).unwrap();

    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &config.brokers)
        .set("group.id", "test")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    consumer.subscribe(&["payments"]).unwrap();
    let next = || loop {
        if let Some(message) = consumer.poll(SOON) {
            return message.unwrap().detach();
        }
    };
    let (event, tombstone) = (next(), next());
    assert_eq!(event.key(), Some(&b"stripe/a/b"[..]));
    assert_eq!(event.payload(), Some(&b"{}"[..]));
    let headers = event.headers().unwrap();
    let names: Vec<&str> = headers.iter().map(|header| header.key).collect();
    assert_eq!(names[..3], ["content-type", "ce_specversion", "ce_id"]);
    // As Java's murmur2 has it, see the reference in the next test.
    assert_eq!(event.partition(), murmur2_partition(b"stripe/a/b", 4));
    assert_eq!((tombstone.payload(), tombstone.partition()), (None, event.partition()));
}

/// Kafka's Java client: `toPositive(murmur2(key)) % partitions`.
fn murmur2_partition(key: &[u8], partitions: u32) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ u32::try_from(key.len()).unwrap();
    let words = key.chunks_exact(4);
    let rest = words.remainder();
    for word in words {
        let mut k = u32::from_le_bytes(word.try_into().unwrap()).wrapping_mul(M);
        k = (k ^ (k >> 24)).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    for (place, byte) in rest.iter().enumerate() {
        hash ^= u32::from(*byte) << (8 * place);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^= hash >> 15;
    i32::try_from((hash & 0x7fff_ffff) % partitions).unwrap()
}

#[test]
fn the_murmur2_of_the_tests_agrees_with_known_values() {
    // From Kafka's UtilsTest: murmur2("21") = -973932308, murmur2("foobar") = -790332482.
    let positive = |hash: i32| hash & 0x7fff_ffff;
    assert_eq!(murmur2_partition(b"21", 1_000_000_007), positive(-973_932_308) % 1_000_000_007);
    assert_eq!(murmur2_partition(b"foobar", 1_000_000_007), positive(-790_332_482) % 1_000_000_007);
}
