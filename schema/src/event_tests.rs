use super::*;
use crate::POSITIONS_TOML;
use proptest::prelude::*;
use serde::Deserialize;

fn decoder() -> Decoder {
    let mut decoder = Decoder::new(Rules::parse(POSITIONS_TOML).expect("rules"));
    decoder.kinds = Kinds::All;
    decoder
}

fn message(value: &[u8]) -> Message<'_, '_> {
    Message { value: Some(value), headers: &[], timestamp: None }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Golden {
    r#type: String,
    resource: String,
    updated_at: String,
    normalised: String,
    event_id: String,
}

#[test]
fn golden_event_ids() {
    let golden: Vec<Golden> = serde_json::from_str(include_str!("../testdata/event_ids.json")).expect("JSON");
    assert!(golden.len() > 20);
    for vector in golden {
        let time = Timestamp::parse(&vector.updated_at).unwrap_or_else(|why| panic!("{}: {why}", vector.updated_at));
        assert_eq!(time.to_string(), vector.normalised);
        let (kind, state) = vector.r#type.split_once('.').expect("a type");
        let id = EventId::new(kind, state, &vector.resource, time);
        assert_eq!(id.to_string(), vector.event_id);
        assert_eq!(EventId::parse(&vector.event_id), Some(id));
    }
}

const PAID: &str = r#"{"type":"payment.succeeded","resource":"stripe/acct_1/pi_3Nf","updatedAt":"2026-01-02T03:04:05.123456Z","source":"eu-1","data":{"provider":"stripe","merchant":"m1","amount":1000,"fee":29,"currency":"EUR"}}"#;

#[test]
fn the_fingerprint_is_what_its_documentation_says() {
    let decoder = decoder();
    let event = decoder.decode(message(PAID.as_bytes())).expect("an event");
    let preimage = event.facts.preimage(event.kind, event.state, &event.resource, event.updated_at);
    assert_eq!(
        preimage,
        "postonce:fingerprint:v1\npayment.succeeded\nstripe/acct_1/pi_3Nf\n2026-01-02T03:04:05.123456Z\n\
         provider=stripe\nmerchant=m1\namount=1000\ncurrency=EUR\nfee=29\n"
    );
    // printf '…' | sha256sum | cut -c1-32
    assert_eq!(format!("{:?}", event.fingerprint), "Fingerprint:99c1fee58158c006f328b79c37d5a9c7");
}

#[test]
fn what_is_outside_the_rules_does_not_change_the_fingerprint() {
    let decoder = decoder();
    let fingerprint = |text: &str| decoder.decode(message(text.as_bytes())).expect("an event").fingerprint;
    let plain = fingerprint(PAID);
    assert_eq!(fingerprint(&PAID.replace("eu-1", "eu-2")), plain, "source");
    assert_eq!(fingerprint(&PAID.replace("\"amount\"", "\"note\":null,\"amount\"")), plain, "unknown member");
    assert_eq!(fingerprint(&PAID.replace(',', " ,\n")), plain, "white space");
    assert_eq!(fingerprint(&PAID.replace("05.123456Z", "05.1234569+00:00")), plain, "the same time");
    assert_eq!(fingerprint(&PAID.replace("\"m1\"", "\"\\u006d1\"")), plain, "escapes");
    assert_ne!(fingerprint(&PAID.replace("1000", "1001")), plain, "amount");
    let created = PAID.replace("succeeded", "created");
    assert_ne!(fingerprint(&created), fingerprint(&created.replace("\"fee\":29,", "")), "absence");
}

#[derive(Deserialize)]
struct Sample {
    name: String,
    value: Option<String>,
    value_hex: Option<String>,
    code: Option<String>,
    place: Option<String>,
    /// `null`: JSON readers differ on these bytes before a schema sees them.
    schema: Option<bool>,
}

impl Sample {
    fn bytes(&self) -> Vec<u8> {
        match (&self.value, &self.value_hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(hex)) => {
                (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect()
            }
            (None, None) => panic!("{}: no value", self.name),
        }
    }
}

fn samples() -> Vec<Sample> {
    let lines = include_str!("../testdata/samples.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[test]
fn every_sample_is_judged_as_it_says() {
    let decoder = decoder();
    let mut wrong = Vec::new();
    for sample in samples() {
        let bytes = sample.bytes();
        let now = jiff::Timestamp::now().as_millisecond();
        let reject = decoder.decode(Message { timestamp: Some(now), ..message(&bytes) }).err();
        let code = reject.as_ref().map(|reject| reject.code().to_owned());
        let place = reject.as_ref().map(|reject| reject.place().to_owned());
        if code != sample.code || (sample.place.is_some() && place != sample.place) {
            wrong.push(format!("{}: {reject:?}, expected {:?} at {:?}", sample.name, sample.code, sample.place));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_json_schema_agrees_with_the_parser() {
    let schema: serde_json::Value = serde_json::from_str(include_str!("../event.schema.json")).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a JSON Schema");
    let (mut accepted, mut refused) = (0, 0);
    for sample in samples() {
        // Where the bytes are no JSON at all, a schema has nothing to say.
        let (Ok(value), Some(says)) = (serde_json::from_slice(&sample.bytes()), sample.schema) else { continue };
        assert_eq!(validator.is_valid(&value), says, "{}", sample.name);
        assert!(sample.code.is_some() || says, "{}: the parser accepts what the schema refuses", sample.name);
        *(if says { &mut accepted } else { &mut refused }) += 1;
    }
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CloudEvent {
    name: String,
    headers: Vec<(String, String)>,
    value: String,
    code: Option<String>,
    place: Option<String>,
    same_as: Option<String>,
}

#[test]
fn cloudevents_are_the_same_events() {
    let decoder = decoder();
    let samples: Vec<CloudEvent> = serde_json::from_str(include_str!("../testdata/cloudevents.json")).expect("JSON");
    for sample in &samples {
        let headers: Vec<Header<'_>> = sample
            .headers
            .iter()
            .map(|(name, value)| Header { name: name.as_bytes(), value: Some(value.as_bytes()) })
            .collect();
        let read = decoder.decode(Message { value: Some(sample.value.as_bytes()), headers: &headers, timestamp: None });
        let code = read.as_ref().err().map(|reject| reject.code().to_owned());
        assert_eq!(code, sample.code, "{}: {read:?}", sample.name);
        if let (Err(reject), Some(place)) = (&read, &sample.place) {
            assert_eq!(reject.place(), place, "{}", sample.name);
        }
        if let (Ok(event), Some(plain)) = (&read, &sample.same_as) {
            let plain = decoder.decode(message(plain.as_bytes())).expect("a plain event");
            let same = |e: &Event<'_>| (e.id, e.fingerprint, e.source.clone().map(Cow::into_owned));
            assert_eq!(same(event), same(&plain), "{}", sample.name);
        }
    }
}

#[test]
fn limits_of_size_and_clock() {
    let decoder = decoder();
    let tombstone = Message { value: None, headers: &[], timestamp: None };
    assert_eq!(decoder.decode(tombstone).expect_err("refused").code(), "empty");
    let padded = |bytes: usize| format!("{}{PAID}", " ".repeat(bytes - PAID.len()));
    assert!(decoder.decode(message(padded(MAX_MESSAGE_BYTES).as_bytes())).is_ok());
    let reject = decoder.decode(message(padded(MAX_MESSAGE_BYTES + 1).as_bytes())).expect_err("too large");
    assert_eq!(reject.code(), "too_large");
    let at = Timestamp::parse("2026-01-02T03:04:05.123456Z").expect("a time").micros() / 1000;
    let day = 24 * 3600 * 1000;
    let sent =
        |timestamp| decoder.decode(Message { value: Some(PAID.as_bytes()), headers: &[], timestamp: Some(timestamp) });
    assert!(sent(at + 1 - day).is_ok());
    assert_eq!(sent(at - 1 - day).expect_err("ahead").code(), "future_time");
    assert!(sent(i64::MIN).is_err() && sent(i64::MAX).is_ok(), "no timestamp overflows");
}

#[test]
fn journals_need_permission() {
    let mut decoder = decoder();
    decoder.kinds = Kinds::AllButJournals;
    let journal = r#"{"type":"journal.voided","resource":"books/1","updatedAt":"2026-01-02T03:04:05Z","data":{"author":"a","reason":"r"}}"#;
    assert_eq!(decoder.decode(message(journal.as_bytes())).expect_err("refused").code(), "kind_not_allowed");
    decoder.kinds = Kinds::Only(["journal".to_owned()].into());
    assert!(decoder.decode(message(journal.as_bytes())).is_ok());
    assert_eq!(decoder.decode(message(PAID.as_bytes())).expect_err("refused").code(), "kind_not_allowed");
}

#[test]
fn facts_survive_the_database() {
    let decoder = decoder();
    for sample in samples().iter().filter(|sample| sample.code.is_none()) {
        let bytes = sample.bytes();
        let event = decoder.decode(message(&bytes)).expect("an event");
        let json = event.facts.to_json(event.kind);
        assert_eq!(Facts::from_json(event.kind, &json), Ok(event.facts), "{}: {json}", sample.name);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decoder().decode(message(&bytes));
    }

    #[test]
    fn no_damaged_event_panics(at in 0..PAID.len(), with in any::<u8>(), cut in 0..PAID.len()) {
        let mut bytes = PAID.as_bytes().to_vec();
        bytes[at] = with;
        let _ = decoder().decode(message(&bytes));
        let _ = decoder().decode(message(&bytes[..cut]));
    }
}
