//! One event in many envelopes, through `postonce send` and byte by byte.

use std::time::Duration;

use anyhow::{Context, Result};
use postonce_schema::Kinds;
use postonce_tests::{Flow, Ledger, Message, PostonceProcess, Terms, Trial, kafka, payment, repository, trials};
use serde_json::Value;
use tempfile::NamedTempFile;

pub fn tests() -> Vec<Trial> {
    trials![one_event_in_every_envelope_is_posted_once, the_samples_of_cloudevents_are_the_same_events]
}

const LIMIT: Duration = Duration::from_secs(60);

fn one_event_in_every_envelope_is_posted_once() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("envelope")?, "envelope", 3)?;
    let consumer = flow.consume(&["--workers", "2"])?;
    let event = payment("stripe/acct_1/größe", "succeeded", "2026-01-02T03:04:05.5Z", 1999);
    let text = String::from_utf8(event.value.clone().unwrap())?;
    let json: Value = serde_json::from_str(&text)?;
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), text.clone() + "\n")?;
    let bootstrap = kafka.bootstrap();
    let own = ["send", file.path().to_str().context("a path")?, "-t", &flow.topic, "-b", &bootstrap];
    for more in [&["--cloudevents", "structured"][..], &["--cloudevents", "binary"], &[]] {
        PostonceProcess::run(&[&own, more].concat(), &[], LIMIT)?;
    }
    let data = json["data"].to_string();
    let structured = format!(
        r#"{{"specversion":"1.0","id":"other","source":"elsewhere","type":"payment.succeeded","subject":"stripe/acct_1/größe","time":"2026-01-02T04:04:05.500000+01:00","data":{data}}}"#
    );
    flow.send([
        event,
        Message::new(structured).header("content-type", "application/cloudevents+json; charset=utf-8"),
        Message::new(data)
            .header("content-type", "application/json")
            .header("ce_specversion", "1.0")
            .header("ce_id", "1")
            .header("ce_source", "elsewhere")
            .header("ce_type", "payment.succeeded")
            .header("ce_subject", "stripe/acct_1/größe")
            .header("ce_time", "2026-01-02T03:04:05.50Z"),
    ])?;
    flow.wait_done(LIMIT)?;
    let count = |outcome: &str| consumer.metric("postonce_events_total", &[("outcome", outcome)]);
    assert_eq!((count("posted")?, count("duplicate")?, count("rejected")?), (1.0, 5.0, 0.0));
    consumer.finish()?;
    flow.check_whole()?;
    assert_eq!(flow.ledger.balance("assets:psp:stripe", "EUR")?, 1999);
    // Whatever its envelope, the event went the way of its resource.
    let keys: Vec<_> = postonce_tests::read_all(&bootstrap, &flow.topic)?.into_iter().map(|sent| sent.key).collect();
    assert_eq!(keys.iter().filter(|key| key.as_deref() == Some("stripe/acct_1/größe".as_bytes())).count(), 4);
    Ok(())
}

/// schema/testdata/cloudevents.json names the plain event for each: sent behind it,
/// that one is a duplicate.
fn the_samples_of_cloudevents_are_the_same_events() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("samples")?, "samples", 1)?;
    let path = repository().join("schema/testdata/cloudevents.json");
    let samples: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let mut pairs = 0;
    for sample in samples.iter().filter(|sample| sample["code"].is_null()) {
        let Some(plain) = sample["sameAs"].as_str() else { continue };
        let mut message = Message::new(sample["value"].as_str().context("no value")?);
        for header in sample["headers"].as_array().into_iter().flatten() {
            let [name, value] = [&header[0], &header[1]].map(|part| part.as_str().unwrap_or_default());
            message = message.header(name, value);
        }
        flow.send([message, Message::new(plain)])?;
        pairs += 1;
    }
    assert!(pairs > 10);
    let consumer = flow.consume(&["--kinds", "all", "--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_by(&Terms::shipped(Kinds::All)?)?;
    let outcomes = flow.ledger.outcomes()?;
    assert_eq!(outcomes.len(), 2 * pairs);
    // The second of each pair is known; nothing is refused, nothing contradicts.
    assert!(outcomes.bytes().skip(1).step_by(2).all(|outcome| outcome == b'D'), "{outcomes}");
    assert!(outcomes.bytes().all(|outcome| b"PNDS".contains(&outcome)), "{outcomes}");
    Ok(())
}
