//! What the client's CPU does for one event, without I/O: `cargo bench -p postonce-consumer`.
//!
//! | function | what is measured |
//! |---|---|
//! | `event` | bytes to a decision: parse, ids, fingerprint, decide |
//! | `decode` | of that, bytes to an event |
//! | `decide` | of that, an event to its postings |
//! | `duplicate` | deciding on an event that is known already |
//! | `chain` | the hashes of a message's parts, and its link of the message chain |
//! | `advance` | outcomes, canonical rows, both chains |
//! | `encode` | the rows as COPY takes them |
//!
//! Every figure is for **one** event: whole batches are measured, and their time is
//! divided by their events. So are the nanoseconds in
//! `target/criterion/client/FUNCTION/new/estimates.json`.

#![allow(clippy::expect_used, clippy::panic, reason = "a bench that cannot go on must stop")]

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use postonce_consumer::batch::{Batch, Positions, Received, advance};
use postonce_consumer::chain::{Parts, START};
use postonce_consumer::claim::{Claim, Claims};
use postonce_consumer::decide::{Arrival, Content, Decision, Held, Known, decide};
use postonce_consumer::distance::Came;
use postonce_consumer::message::{At, Message};
use postonce_consumer::rows::CopyBinary;
use postonce_schema::{Decoder, Event, Kinds, POSITIONS_TOML, ResourceId, Rules, StreamId};
use std::collections::HashMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// A full batch of a busy consumer.
const EVENTS: usize = 10_000;
const MERCHANTS: usize = 5_000;

/// 300 bytes of JSON, each of a resource of its own, two postings.
fn value(nth: usize) -> Vec<u8> {
    // A step without a common divisor visits the merchants in no order.
    let merchant = nth * 2_741 % MERCHANTS;
    let text = format!(
        concat!(
            r#"{{"type":"payment.succeeded","resource":"stripe/acct_1/pi_3Nf{nth:012}","#,
            r#""updatedAt":"2026-01-{day:02}T{hour:02}:04:05.{micros:06}Z","source":"eu-1/payments","data":{{"#,
            r#""provider":"stripe","merchant":"m_{merchant:05}","currency":"EUR","amount":{amount},"fee":{fee},"#,
            r#""customer":"cus_{customer:08}","method":"card","description":"Order {nth:08}"}}}}"#
        ),
        nth = nth,
        day = nth % 28 + 1,
        hour = nth % 24,
        micros = nth * 97 % 1_000_000,
        merchant = merchant,
        amount = 1_000 + nth * 7 % 90_000,
        fee = 30 + nth % 900,
        customer = nth * 31,
    );
    text.into_bytes()
}

fn stream() -> StreamId {
    StreamId::new("cluster", "payments", "topic", 0)
}

fn messages(values: &[Vec<u8>]) -> Vec<Message<'_>> {
    let message = |(offset, value)| Message {
        at: At { stream: stream(), offset },
        key: Some(b"stripe/acct_1/pi_3Nf000000000000".as_slice()),
        value: Some(Vec::as_slice(value)),
        headers: Vec::new(),
        timestamp: Some(1_800_000_000_000),
        leader_epoch: Some(0),
    };
    (0..).zip(values).map(message).collect()
}

fn decode<'a>(decoder: &'a Decoder, message: &Message<'a>) -> Event<'a> {
    let Message { value, timestamp, .. } = *message;
    let raw = postonce_schema::Message { value, headers: &message.headers, timestamp };
    decoder.decode(raw).expect("a valid event")
}

fn arrivals<'b, 'a>(messages: &'b [Message<'a>], events: &'b [Event<'a>]) -> Vec<Arrival<'b, 'a>> {
    messages.iter().zip(events).map(|(message, event)| Arrival { message, event }).collect()
}

/// Nothing is known: every event is new.
fn decide_new<'b, 'a: 'b>(arrivals: &[Arrival<'b, 'a>]) -> Decision<'b, 'a> {
    let decision = decide(arrivals, HashMap::new(), Known::new());
    assert_eq!((decision.events.len(), decision.postings.len()), (arrivals.len(), 2 * arrivals.len()));
    decision
}

/// Every event is the state of its resource: what a replay finds.
fn ledger<'a>(events: &[Event<'a>]) -> (HashMap<ResourceId, Held<'a>>, Known) {
    let held = |event: &Event<'a>| Held {
        revision: 1,
        version: event.version,
        kind: event.kind,
        state: event.state,
        updated_at: event.updated_at,
        facts: event.facts.clone(),
    };
    let content = |event: &Event<'a>| Content { fingerprint: event.fingerprint, came: Came::Before(None) };
    let known = events.iter().map(|event| (event.id, vec![content(event)])).collect();
    (events.iter().map(|event| (event.resource_id, held(event))).collect(), known)
}

fn claims() -> Claims {
    let claim = Claim {
        stream: stream(),
        partition: 0,
        token: uuid::Uuid::nil(),
        epoch: 1,
        next_offset: 0,
        leader_epoch: Some(0),
        batch_seq: 0,
        message_chain: START,
        batch_chain: START,
    };
    Claims::from([(claim.stream, claim)])
}

fn encode(decision: &Decision<'_, '_>) -> usize {
    let (mut events, mut resources, mut postings) = (CopyBinary::begin(), CopyBinary::begin(), CopyBinary::begin());
    decision.events.iter().for_each(|new| events.event(new));
    decision.resources.values().for_each(|change| resources.resource(change));
    decision.postings.iter().for_each(|posting| postings.posting(posting));
    [events, resources, postings].map(|copy| copy.finish().len()).iter().sum()
}

/// Measures `batch`, which does one step for all events, and reports it for one.
/// `setup` is not measured; dropping what `batch` returns is.
fn per_event<S, R>(
    criterion: &mut Criterion,
    function: &str,
    mut setup: impl FnMut() -> S,
    mut batch: impl FnMut(S) -> R,
) {
    let mut group = criterion.benchmark_group("client");
    group.throughput(Throughput::Elements(1));
    // So many iterations in every sample, and so always some whole batches.
    group.sampling_mode(SamplingMode::Flat);
    group.sample_size(50).warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    group.bench_function(function, |bencher| {
        bencher.iter_custom(|events| {
            let batches = usize::try_from(events).map_or(1, |events| events.div_ceil(EVENTS));
            let mut spent = Duration::ZERO;
            for _ in 0..batches {
                let input = black_box(setup());
                let began = Instant::now();
                drop(black_box(batch(input)));
                spent += began.elapsed();
            }
            let share = f64::from(u32::try_from(events).unwrap_or(u32::MAX))
                / f64::from(u32::try_from(batches * EVENTS).unwrap_or(u32::MAX));
            spent.mul_f64(share)
        });
    });
    group.finish();
}

fn client(criterion: &mut Criterion) {
    let mut decoder = Decoder::new(Rules::parse(POSITIONS_TOML).expect("the rules"));
    decoder.kinds = Kinds::All;
    let values: Vec<Vec<u8>> = (0..EVENTS).map(value).collect();
    assert!(values.iter().all(|value| (290..=310).contains(&value.len())), "about 300 bytes, not {}", values[0].len());
    let messages = messages(&values);
    let decoded = || messages.iter().map(|message| decode(&decoder, message)).collect::<Vec<_>>();
    let events = decoded();
    let all = arrivals(&messages, &events);

    per_event(
        criterion,
        "event",
        || (),
        |()| {
            let events = decoded();
            let decision = decide_new(&arrivals(&messages, &events));
            (decision.outcomes.len(), decision.postings)
        },
    );
    per_event(criterion, "decode", || (), |()| decoded());
    per_event(criterion, "decide", || (), |()| decide_new(&all));
    per_event(
        criterion,
        "duplicate",
        || ledger(&events),
        |(held, known)| {
            let decision = decide(&all, held, known);
            assert!(decision.events.is_empty(), "all are known");
            decision
        },
    );
    per_event(
        criterion,
        "chain",
        || (),
        |()| messages.iter().fold(START, |chain, message| Parts::of(message).link(chain, message.at.offset)),
    );

    let received: Vec<Received<'_>> =
        messages.iter().map(|message| Received::read(message.clone(), &decoder)).collect();
    let batch = Batch { received: &received, positions: &Positions::new() };
    let arrivals = batch.arrivals();
    let (decision, claims) = (decide_new(&arrivals), claims());
    per_event(
        criterion,
        "advance",
        || (),
        |()| match advance(&batch, &decision, &claims) {
            Ok(advances) => advances.len(),
            Err(_) => panic!("the batch goes forward"),
        },
    );
    per_event(criterion, "encode", || (), |()| encode(&decision));
}

criterion_group!(benches, client);
criterion_main!(benches);
