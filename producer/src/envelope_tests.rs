use postonce_schema::{Decoder, Event, Header, Message, POSITIONS_TOML, Rules};

use super::*;

const PLAIN: &str = r#"{"type":"payment.succeeded","resource":"stripe/acct_1/pi_3Nf","updatedAt":"2026-01-02T03:04:05.678901Z","source":"eu-1","note":1,"data":{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":1999,"fee":58}}"#;

fn headers<'a>(encoded: &'a Encoded<'_>) -> Vec<Header<'a>> {
    let headers = encoded.headers.iter();
    headers.map(|(name, value)| Header { name: name.as_ref(), value: Some(value.as_bytes()) }).collect()
}

fn decode<'a>(decoder: &'a Decoder, encoded: &'a Encoded<'_>, headers: &'a [Header<'a>]) -> Event<'a> {
    decoder.decode(Message { value: Some(&encoded.value), headers, timestamp: None }).unwrap()
}

#[test]
fn the_ledger_reads_the_same_event_from_all_three_forms() {
    let decoder = Decoder::new(Rules::parse(POSITIONS_TOML).unwrap());
    let envelope = Envelope::parse(PLAIN.as_bytes()).unwrap();
    let mut seen = Vec::new();
    for encoding in [Encoding::Plain, Encoding::CloudEventsStructured, Encoding::CloudEventsBinary] {
        let encoded = envelope.encode(encoding).unwrap();
        let headers = headers(&encoded);
        let event = decode(&decoder, &encoded, &headers);
        assert_eq!(encoded.key, "stripe/acct_1/pi_3Nf");
        assert_eq!(event.source.as_deref(), Some("eu-1"), "{encoding:?}");
        seen.push((event.id, event.fingerprint));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

#[test]
fn plain_is_byte_for_byte() {
    let encoded = Envelope::parse(PLAIN.as_bytes()).unwrap();
    let encoded = encoded.encode(Encoding::Plain).unwrap();
    assert_eq!(encoded.value, PLAIN.as_bytes());
    assert_eq!(encoded.headers, []);
}

#[test]
fn structured_has_every_attribute() {
    let envelope = Envelope::parse(PLAIN.as_bytes()).unwrap();
    let encoded = envelope.encode(Encoding::CloudEventsStructured).unwrap();
    assert_eq!(encoded.headers, [("content-type", Cow::Borrowed("application/cloudevents+json"))]);
    let json: serde_json::Value = serde_json::from_slice(&encoded.value).unwrap();
    let decoder = Decoder::new(Rules::parse(POSITIONS_TOML).unwrap());
    let plain = envelope.encode(Encoding::Plain).unwrap();
    let id = decode(&decoder, &plain, &[]).id.to_string();
    assert_eq!(
        json,
        serde_json::json!({
            "specversion": "1.0", "id": id, "type": "payment.succeeded", "source": "eu-1",
            "subject": "stripe/acct_1/pi_3Nf", "time": "2026-01-02T03:04:05.678901Z",
            "datacontenttype": "application/json",
            "data": {"provider": "stripe", "merchant": "m_1", "currency": "EUR", "amount": 1999, "fee": 58}
        })
    );
}

#[test]
fn binary_has_the_attributes_as_headers_and_data_as_value() {
    let envelope = Envelope::parse(PLAIN.as_bytes()).unwrap();
    let encoded = envelope.encode(Encoding::CloudEventsBinary).unwrap();
    let id = envelope.cloud_event_id();
    let expected = [
        ("content-type", "application/json"),
        ("ce_specversion", "1.0"),
        ("ce_id", &*id),
        ("ce_source", "eu-1"),
        ("ce_type", "payment.succeeded"),
        ("ce_subject", "stripe/acct_1/pi_3Nf"),
        ("ce_time", "2026-01-02T03:04:05.678901Z"),
    ];
    let actual: Vec<(&str, &str)> = encoded.headers.iter().map(|(name, value)| (*name, &**value)).collect();
    assert_eq!(actual, expected);
    assert!(id.starts_with("evt_"), "{id}");
    assert!(encoded.value.starts_with(b"{\"provider\":"));
}

#[test]
fn partitionkey_and_id_of_upstream_go_first() {
    let json = br#"{"resource":"r\u00e9s","partitionkey":"m_7","id":"abc","type":"fee.charged"}"#;
    let envelope = Envelope::parse(json).unwrap();
    assert_eq!(envelope.key(), "m_7");
    let encoded = envelope.encode(Encoding::CloudEventsBinary).unwrap();
    assert!(encoded.headers.contains(&("ce_id", Cow::Borrowed("abc"))));
    assert!(encoded.headers.contains(&("ce_partitionkey", Cow::Borrowed("m_7"))));
    assert!(encoded.headers.contains(&("ce_source", Cow::Borrowed("postonce"))));
    assert!(encoded.headers.contains(&("ce_subject", Cow::Borrowed("rés"))));
}

#[test]
fn an_event_without_an_id_of_its_own_still_gets_one() {
    let envelope = Envelope::parse(br#"{"resource":"r","updatedAt":5,"type":"x"}"#).unwrap();
    assert_eq!(envelope.cloud_event_id(), "x:r@5");
}

#[test]
fn what_has_no_key_is_malformed() {
    for json in ["", "[]", "5", "{\"resource\":", "{\"resource\":\"r\"} x", "{\"resource\":\"a\u{1}\"}"] {
        assert!(matches!(Envelope::parse(json.as_bytes()), Err(Malformed::NotAnEvent(_))), "{json}");
    }
    for json in ["{}", "{\"resource\":null}", "{\"resource\":7}"] {
        assert_eq!(Envelope::parse(json.as_bytes()).unwrap_err(), Malformed::NoResource, "{json}");
    }
    assert!(Envelope::parse(b"{\"resource\":\"\xff\"}").is_err());
    let error = Envelope::parse(b"{\"resource\":").unwrap_err().to_string();
    assert_eq!(error, "not an event: EOF while parsing a value at column 12");
}

#[test]
fn a_repeated_member_is_for_the_ledger_to_refuse_unless_it_would_be_lost() {
    let json = br#"{"resource":"r","type":"a.b","type":"a.c"}"#;
    let envelope = Envelope::parse(json).unwrap();
    assert_eq!(envelope.encode(Encoding::Plain).unwrap().value, &json[..]);
    for encoding in [Encoding::CloudEventsBinary, Encoding::CloudEventsStructured] {
        assert_eq!(envelope.encode(encoding).unwrap_err(), Malformed::RepeatedMember("type"));
    }
}
