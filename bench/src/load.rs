//! The events: the same every time, each about 300 bytes of JSON.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use postonce_producer::{Config, Headers, Message, Producer};
use std::fmt::Write;
use std::ops::Range;
use std::time::Duration;

/// Where the time of the events begins: 2024-01-01T00:00:00Z.
const START_MICROS: u64 = 1_704_067_200_000_000;
/// Between one event and the next: what a busy platform has.
const STEP_MICROS: u64 = 1_000;

/// Payments that have succeeded, each a resource of its own with two postings (amount and
/// fee), spread evenly over some merchants, `updatedAt` rising.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Payments {
    pub events: u64,
    pub merchants: u64,
}

impl Payments {
    /// Over 5,000 merchants.
    pub fn usual(events: u64) -> Self {
        Self { events, merchants: 5_000 }
    }

    /// Writes the event of this number, from 0.
    pub fn write(&self, number: u64, event: &mut EventText) {
        Payment { number, state: "succeeded", micros: time_of(number), merchants: self.merchants }.write(event);
    }
}

/// A payment in one of its states.
#[derive(Clone, Copy, Debug)]
pub struct Payment {
    pub number: u64,
    pub state: &'static str,
    /// Its `updatedAt`.
    pub micros: u64,
    pub merchants: u64,
}

impl Payment {
    pub fn write(&self, event: &mut EventText) {
        let Self { number, state, micros, merchants } = *self;
        let chance = mix(number);
        let merchant = chance % merchants;
        let amount = 100 + (chance >> 20) % 500_000;
        let fee = amount / 50 + 25;
        event.clear();
        event.key(format_args!("stripe/acct_1/pi_{number:016}"));
        event.value(format_args!(
            "{{\"type\":\"payment.{state}\",\"resource\":\"stripe/acct_1/pi_{number:016}\",\
             \"updatedAt\":\"{}\",\"source\":\"eu-1\",\"data\":{{\"provider\":\"stripe\",\
             \"merchant\":\"m_{merchant:06}\",\"currency\":\"EUR\",\"amount\":{amount},\"fee\":{fee},\
             \"event\":\"{}\",\"customer\":\"cus_{:016x}\",\"method\":\"card\"}}}}",
            at(micros),
            outside_id(number),
            mix(chance),
        ));
    }
}

/// The time of the event of this number, where they come in order.
pub fn time_of(number: u64) -> u64 {
    START_MICROS + number * STEP_MICROS
}

/// The id that a sink without one of its own would take from the payload: rising in time, as
/// a UUIDv7 is, which is the kindest to its index.
fn outside_id(number: u64) -> String {
    let micros = time_of(number);
    let (millis, below) = (micros / 1_000, micros % 1_000);
    let tail = mix(number ^ 0x5eed);
    format!(
        "{:08x}-{:04x}-7{:03x}-8{:03x}-{:012x}",
        millis >> 16,
        millis & 0xffff,
        below,
        tail & 0xfff,
        (tail >> 12) & 0xffff_ffff_ffff
    )
}

/// As an event says its time.
pub fn at(micros: u64) -> String {
    let time = i64::try_from(micros).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    format!("{:.6}", time.unwrap_or(Timestamp::UNIX_EPOCH))
}

/// A number that looks like chance (SplitMix64's last step): the same for the same number.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Key and value of one message; the memory is used again.
#[derive(Default)]
pub struct EventText {
    key: String,
    value: String,
}

impl EventText {
    pub fn clear(&mut self) {
        self.key.clear();
        self.value.clear();
    }

    pub fn key(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = self.key.write_fmt(text);
    }

    pub fn value(&mut self, text: std::fmt::Arguments<'_>) {
        let _ = self.value.write_fmt(text);
    }

    /// As a message of a topic; the partition follows from the key if none is named.
    pub fn message(&self, partition: Option<i32>, tag: usize) -> Message<'_> {
        let (key, value) = (Some(self.key.as_bytes()), Some(self.value.as_bytes()));
        Message { key, partition, value, headers: Headers::Text(&[]), tag }
    }
}

/// Messages in memory, in one piece of it.
#[derive(Default)]
pub struct InMemory {
    bytes: Vec<u8>,
    messages: Vec<(Range<usize>, Range<usize>)>,
}

impl InMemory {
    /// Writes so many events.
    pub fn of(events: u64, mut write: impl FnMut(u64, &mut EventText)) -> Self {
        let (mut all, mut event) = (Self::default(), EventText::default());
        for number in 0..events {
            event.clear();
            write(number, &mut event);
            let (key, value) = (all.put(&event.key), all.put(&event.value));
            all.messages.push((key, value));
        }
        all
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Key and value.
    pub fn get(&self, place: usize) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.messages.get(place)?;
        Some((self.bytes.get(key.clone())?, self.bytes.get(value.clone())?))
    }

    fn put(&mut self, text: &str) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text.as_bytes());
        start..self.bytes.len()
    }
}

/// Fills a topic as the product's own producer does: lz4, acks=all, the key's murmur2.
pub fn send(brokers: &str, topic: &str, events: u64, mut write: impl FnMut(u64, &mut EventText)) -> Result<()> {
    let producer = Producer::new(&Config::new(brokers, topic))?;
    producer.check(Duration::from_secs(30))?;
    let mut event = EventText::default();
    for number in 0..events {
        event.clear();
        write(number, &mut event);
        producer.send(event.message(None, usize::try_from(number)?))?;
    }
    let report = producer.flush(Duration::from_secs(150)).with_context(|| format!("filling topic {topic}"))?;
    ensure!(report.delivered == events, "{} of {events} events were delivered to {topic}", report.delivered);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use postonce_schema::{Decoder, Message, POSITIONS_TOML, Position, Rules};

    #[test]
    fn events_are_valid_of_about_300_bytes_and_make_two_postings() {
        let decoder = Decoder::new(Rules::parse(POSITIONS_TOML).unwrap());
        let payments = Payments::usual(1_000);
        let all = InMemory::of(1_000, |number, event| payments.write(number, event));
        let mut resources = std::collections::HashSet::new();
        for place in 0..all.len() {
            let (key, value) = all.get(place).unwrap();
            assert!((280..=340).contains(&value.len()), "{} bytes", value.len());
            let message = Message { value: Some(value), headers: &[], timestamp: None };
            let event = decoder.decode(message).unwrap();
            assert_eq!(event.resource.as_bytes(), key);
            let postings = Position::of(event.state, &event.facts).minus(Position::default());
            assert_eq!(postings.len(), 2);
            assert!(resources.insert(event.resource_id), "a resource of its own");
        }
    }

    #[test]
    fn the_same_every_time() {
        let of = |events| InMemory::of(events, |number, event| Payments::usual(events).write(number, event));
        assert_eq!(of(100).bytes, of(100).bytes);
    }

    #[test]
    fn outside_ids_rise() {
        let ids: Vec<String> = (0..10_000).map(outside_id).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(ids.iter().all(|id| id.len() == 36));
    }
}
