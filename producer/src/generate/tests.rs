use std::collections::{HashMap, HashSet};

use postonce_schema::{Decoder, Event, EventId, Fingerprint, Message, POSITIONS_TOML, Rules};

use super::*;

/// Later than every good event, earlier than 2999.
const SENT_MILLIS: i64 = 1_750_000_000_000;

fn mixed(events: u64, seed: u64) -> Workload {
    Workload { duplicates: 0.1, disorder: 0.2, poison: 0.05, conflicts: 0.05, ..Workload::new(events, seed) }
}

fn decode<'a>(decoder: &'a Decoder, message: &'a Generated) -> Result<Event<'a>, postonce_schema::Reject> {
    let value = message.value.as_deref();
    decoder.decode(Message { value, headers: &[], timestamp: Some(SENT_MILLIS) })
}

fn decoder() -> Decoder {
    Decoder::new(Rules::parse(POSITIONS_TOML).unwrap())
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let all = |seed| Generator::new(mixed(5_000, seed)).unwrap().collect::<Vec<_>>();
    assert_eq!(all(7), all(7));
    assert_ne!(all(7), all(8));
}

/// The ledger's own reader agrees with every class.
#[test]
fn every_message_is_what_its_class_says() {
    let decoder = decoder();
    let mut generator = Generator::new(mixed(60_000, 1)).unwrap();
    let mut unique: HashMap<EventId, Fingerprint> = HashMap::new();
    let mut duplicates = Vec::new();
    let mut contradictions = HashSet::new();
    for message in generator.by_ref() {
        let decoded = decode(&decoder, &message);
        match (message.class, decoded) {
            (Class::Poison(poison), decoded) => {
                let code = decoded.expect_err(poison.name()).code();
                assert_eq!(code, poison.code(), "{poison:?}");
            }
            (class, decoded) => {
                let event = decoded.unwrap_or_else(|reject| panic!("{reject}: {message:?}"));
                assert_eq!(message.key.as_deref(), Some(&*event.resource));
                match class {
                    Class::Unique => assert_eq!(unique.insert(event.id, event.fingerprint), None),
                    Class::Duplicate => duplicates.push((event.id, event.fingerprint)),
                    _ => assert!(contradictions.insert((event.id, event.fingerprint))),
                }
            }
        }
    }
    for (id, fingerprint) in &duplicates {
        assert_eq!(unique.get(id), Some(fingerprint));
    }
    for (id, fingerprint) in &contradictions {
        assert!(unique.get(id).is_some_and(|original| original != fingerprint));
    }
    let summary = generator.summary();
    let count = |length: usize| u64::try_from(length).unwrap();
    assert_eq!(summary.events, 60_000);
    assert_eq!(summary.unique, count(unique.len()));
    assert_eq!(summary.duplicates, count(duplicates.len()));
    assert_eq!(summary.conflicts, count(contradictions.len()));
    assert_eq!(summary.unique + summary.duplicates + summary.conflicts + summary.poison, summary.events);
    assert_eq!(summary.poison_by_class.values().sum::<u64>(), summary.poison);
    assert_eq!(summary.poison_by_class.len(), Poison::ALL.len(), "every class occurs");
    assert_eq!(summary.poison_by_class[&Poison::TooLarge], 1);
    for (asked, got) in [(6_000, summary.duplicates), (3_000, summary.poison), (3_000, summary.conflicts)] {
        assert!(got.abs_diff(asked) < asked / 10, "asked for {asked}, got {got}");
    }
    assert!(summary.out_of_order.abs_diff(12_000) < 1_200);
}

#[test]
fn every_poison_has_the_code_that_the_ledger_gives() {
    let decoder = decoder();
    let mut generator = Generator::new(Workload::new(1, 3)).unwrap();
    let mut payment = generator.nursery.payment(&mut generator.rng);
    payment.state = State::Succeeded;
    let fact = generator.fact(&payment);
    let names: HashSet<&str> = Poison::ALL.iter().map(|poison| poison.name()).collect();
    assert_eq!(names.len(), Poison::ALL.len());
    for poison in Poison::ALL {
        let message = Generated { key: None, value: poison.value(&fact), class: Class::Poison(*poison) };
        let code = decode(&decoder, &message).expect_err(poison.name()).code();
        assert_eq!(code, poison.code(), "{poison:?}");
        let line = message.value.as_deref().unwrap_or_default();
        assert_eq!(crate::Envelope::parse(line).is_ok() && !line.contains(&b'\n'), poison.fits_line(), "{poison:?}");
    }
}

#[test]
fn lines_only_makes_nothing_that_a_file_cannot_hold() {
    let workload = Workload { lines_only: true, poison: 0.5, ..Workload::new(5_000, 5) };
    for message in Generator::new(workload).unwrap() {
        let line = message.value.unwrap();
        assert!(!line.contains(&b'\n'));
        let envelope = crate::Envelope::parse(&line).unwrap();
        if !matches!(message.class, Class::Poison(poison) if poison.code() == "bad_resource") {
            assert_eq!(envelope.key(), &*message.key.unwrap());
        }
    }
}

#[test]
fn without_fractions_all_are_unique_and_in_order() {
    let decoder = decoder();
    let mut last = None;
    let mut kinds: HashMap<String, u64> = HashMap::new();
    for message in Generator::new(Workload::new(50_000, 9)).unwrap() {
        assert_eq!(message.class, Class::Unique);
        let event = decode(&decoder, &message).unwrap();
        assert!(last < Some(event.updated_at));
        last = Some(event.updated_at);
        *kinds.entry(event.type_name()).or_default() += 1;
    }
    let all_types = "payment.created payment.authorized payment.cancelled payment.failed payment.succeeded \
        payment.reversed fee.charged fee.reversed refund.created refund.cancelled refund.succeeded refund.failed \
        dispute.inquiry dispute.opened dispute.won dispute.lost payout.created payout.cancelled payout.paid \
        payout.failed topup.created topup.failed topup.succeeded topup.reversed transfer.created transfer.failed \
        transfer.succeeded transfer.reversed settlement.created settlement.failed settlement.succeeded \
        conversion.created conversion.failed conversion.succeeded";
    for type_ in all_types.split_whitespace() {
        assert!(kinds.contains_key(type_), "{type_} does not occur in {kinds:?}");
    }
}

#[test]
fn memory_is_bounded_even_when_all_is_late() {
    let workload = Workload { disorder: 1.0, duplicates: 0.2, ..Workload::new(100_000, 2) };
    let mut generator = Generator::new(workload).unwrap();
    let mut most = (0, 0);
    while generator.next().is_some() {
        most = (most.0.max(generator.later.len()), most.1.max(generator.delayed.len()));
    }
    assert!(most.0 < 5_000 && most.1 <= 401, "{most:?}");
    assert_eq!(generator.summary().events, 100_000);
    assert_eq!(generator.summary().out_of_order, 100_000);
}

#[test]
fn a_duplicate_is_mostly_the_same_bytes_and_sometimes_other_words() {
    let workload = Workload { duplicates: 0.4, ..Workload::new(10_000, 4) };
    let (mut seen, mut same, mut other) = (HashSet::new(), 0, 0);
    for message in Generator::new(workload).unwrap() {
        match message.class {
            Class::Unique => assert!(seen.insert(message.value)),
            _ if seen.contains(&message.value) => same += 1,
            _ => other += 1,
        }
    }
    assert!(same > other && other > 500, "{same} {other}");
}

#[test]
fn senseless_workloads_are_refused() {
    let of = |workload| Generator::new(workload).err();
    let base = || Workload::new(10, 1);
    assert!(matches!(of(Workload { poison: 1.5, ..base() }), Some(BadWorkload::Fraction { name: "poison", .. })));
    assert!(matches!(of(Workload { disorder: f64::NAN, ..base() }), Some(BadWorkload::Fraction { .. })));
    assert!(matches!(of(Workload { poison: 0.5, conflicts: 0.5, ..base() }), Some(BadWorkload::NoGoodEvents(_))));
    assert_eq!(of(Workload { events: u64::MAX, ..base() }), Some(BadWorkload::Time));
    assert_eq!(Generator::new(Workload::new(0, 1)).unwrap().next(), None);
}
