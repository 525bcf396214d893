//! What a consumer tells Prometheus, on real parts: each figure is the one that it says.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_schema::Kinds;
use postonce_tests::{
    Barrier, Consumer, Flow, Ledger, Message, Proxy, QUICK, Said, Terms, Transaction, Trial, get, kafka, metric,
    payment, payments, start_postgres, trials, unique, wait_until,
};

use crate::faults_traps::ten_payments;

const LIMIT: Duration = Duration::from_secs(60);
const DAY: i64 = 86_400_000;

pub fn tests() -> Vec<Trial> {
    trials![
        every_outcome_is_counted_once,
        what_is_open_and_what_verify_found_is_told,
        the_age_is_that_of_the_message,
        what_waits_is_told_while_postgres_is_away,
        what_another_process_holds_by_now_is_told_no_longer,
        a_stopped_consumer_says_why_until_it_is_told_to_end,
        rules_that_are_refused_at_the_start_are_told,
        the_kafka_client_says_how_it_is,
    ]
}

/// `None` where there is no such series.
fn shown(consumer: &Consumer, name: &str, labels: &[(&str, &str)]) -> Result<Option<f64>> {
    Ok(metric(&get(consumer.port(), "/metrics")?.1, name, labels))
}

/// Waits until a metric has exactly this value.
fn wait_exactly(consumer: &Consumer, name: &str, labels: &[(&str, &str)], value: f64) -> Result<()> {
    let mut last = None;
    let waited = wait_until(LIMIT, &format!("{name}{labels:?} of {value}"), || {
        last = shown(consumer, name, labels)?;
        Ok((last == Some(value)).then_some(()))
    });
    waited.with_context(|| format!("it is {last:?}"))
}

fn now() -> Result<i64> {
    let passed = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH)?;
    Ok(i64::try_from(passed.as_millis())?)
}

fn refund(resource: &str, currency: &str, amount: i64) -> Message {
    let json = format!(
        r#"{{"type":"refund.succeeded","resource":"{resource}","updatedAt":"2025-02-01T00:00:00Z","data":{{"provider":"stripe","merchant":"m_1","currency":"{currency}","amount":{amount}}}}}"#
    );
    Message::new(json).key(resource)
}

fn journal(resource: &str, amount: i64) -> Message {
    let json = format!(
        r#"{{"type":"journal.posted","resource":"{resource}","updatedAt":"2025-02-01T00:00:00Z","data":{{"author":"a","reason":"r","postings":[{{"debit":"assets:points:a","credit":"equity:points","amount":{amount},"asset":"POINTS"}},{{"debit":"assets:stock:a","credit":"equity:stock","amount":{amount},"asset":"SKU-1"}}]}}}}"#
    );
    Message::new(json).key(resource)
}

/// A payment of 100 euros with a fee: two postings.
fn with_fee(resource: &str, fee: i64) -> Message {
    let json = format!(
        r#"{{"type":"payment.succeeded","resource":"{resource}","updatedAt":"2025-02-01T00:00:00Z","data":{{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":100,"fee":{fee}}}}}"#
    );
    Message::new(json).key(resource)
}

/// All of one outcome or another, and what they posted: first everything in one batch, then
/// copies of it from a while later.
fn every_outcome_is_counted_once() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("counted")?, "counted", 1)?;
    let began = now()? - 4 * DAY;
    let at = |later: i64| move |message: Message| message.timestamp(began + later);
    let new = |n: usize| payment(&format!("stripe/a/{n}"), "succeeded", "2025-02-01T00:00:00Z", 100);
    let first = [
        new(0),
        with_fee("stripe/a/fee", 7),
        refund("stripe/a/refund", "USD", 30),
        journal("books/1", 5),
        // No money moves.
        payment("stripe/b/1", "created", "2025-02-01T00:00:00Z", 100),
        // A duplicate, a conflict, a copy of that, and a state that came too late.
        new(0),
        payment("stripe/a/0", "succeeded", "2025-02-01T00:00:00Z", 90),
        payment("stripe/a/0", "succeeded", "2025-02-01T00:00:00Z", 90),
        payment("stripe/a/0", "created", "2025-01-01T00:00:00Z", 100),
        Message::new("{"),
        Message::tombstone(),
    ];
    // A transaction's messages can be read only once it is committed, and then all at once.
    let transaction = Transaction::begin(&kafka.bootstrap())?;
    transaction.send(&flow.topic, first.into_iter().map(at(0)))?;
    transaction.commit()?;
    let consumer = flow.consume(&["--workers", "1", "--kinds", "all"])?;
    // And its marker, which may come a little after the commit.
    flow.wait_offsets(12, LIMIT)?;
    let later = [(30_000, 1), (1_800_000, 2), (5 * 3_600_000, 3), (3 * DAY, 4)];
    let copies = later.into_iter().flat_map(|(later, times)| std::iter::repeat_n(at(later)(new(0)), times));
    flow.send(copies)?;
    flow.send([with_fee("stripe/a/now", 0)])?;
    flow.wait_offsets(23, LIMIT)?;
    // What of a batch is counted last.
    let batches: i64 = flow.ledger.db.one("SELECT count(*) FROM batches")?;
    wait_exactly(&consumer, "postonce_transaction_seconds_count", &[], batches as f64)?;

    let exactly = |name: &str, label: &str, expected: &[(&str, f64)]| -> Result<()> {
        for (value, count) in expected {
            let found = shown(&consumer, name, &[(label, value)])?;
            ensure!(found == Some(*count), "{name}{{{label}={value:?}}} is {found:?}, not {count}");
        }
        let all: f64 = expected.iter().map(|(_, count)| count).sum();
        let found = shown(&consumer, name, &[])?;
        ensure!(found == Some(all), "{name} is {found:?} in all, not {all}");
        Ok(())
    };
    let outcomes = [("posted", 5.0), ("noted", 1.0), ("duplicate", 12.0), ("superseded", 1.0), ("conflict", 1.0)];
    exactly("postonce_events_total", "outcome", &[&outcomes[..], &[("rejected", 2.0)]].concat())?;
    exactly("postonce_rejected_total", "code", &[("bad_json", 1.0), ("empty", 1.0)])?;
    let distances = [("same_batch", 2.0), ("minute", 1.0), ("hour", 2.0), ("day", 3.0), ("older", 4.0)];
    exactly("postonce_duplicates_total", "distance", &distances)?;
    // What the ledger itself says of postings and amounts.
    let postings: Vec<(String, String, i64, i64)> = flow.ledger.db.rows(
        "SELECT r.kind, CASE WHEN a.asset IN ('EUR', 'USD') THEN a.asset ELSE 'other' END, count(*),
                sum(p.amount)::bigint
         FROM postings p JOIN events e ON (e.stream, e.message_offset) = (p.stream, p.message_offset)
         JOIN resources r USING (resource_id) JOIN accounts a ON a.account_id = p.debit GROUP BY 1, 2",
    )?;
    ensure!(postings.len() == 3, "{postings:?}");
    for (kind, asset, count, amount) in &postings {
        let labels = [("kind", kind.as_str()), ("asset", asset)];
        let found = (
            shown(&consumer, "postonce_postings_total", &labels)?,
            shown(&consumer, "postonce_posted_minor_units_total", &labels)?,
        );
        // The conflict's postings have no row of `events`: of two contents one stands.
        let more = if kind == "payment" { conflicting(&flow)? } else { (0, 0) };
        let amount = (asset != "other").then(|| (amount + more.1) as f64);
        ensure!(found == (Some((count + more.0) as f64), amount), "{labels:?}: {found:?}");
    }
    // Each message, and the old ones not among those of a minute.
    ensure!(shown(&consumer, "postonce_end_to_end_seconds_count", &[])? == Some(22.0));
    let minute = shown(&consumer, "postonce_end_to_end_seconds_bucket", &[("le", "60")])?;
    ensure!(minute <= Some(1.0), "{minute:?}");
    let oldest = shown(&consumer, "postonce_end_to_end_seconds_sum", &[])?;
    ensure!(oldest > Some(11.0 * 4.0 * 86_400.0), "{oldest:?}");
    ensure!(shown(&consumer, "postonce_rebalance_seconds_count", &[])? >= Some(1.0));
    ensure!(shown(&consumer, "postonce_build_info", &[("version", env!("CARGO_PKG_VERSION"))])? == Some(1.0));
    ensure!(shown(&consumer, "process_resident_memory_bytes", &[])? > Some(0.0));
    consumer.finish()?;
    flow.check_by(&Terms::shipped(Kinds::All)?).map(drop)
}

/// How many postings a conflict made, and of how much.
fn conflicting(flow: &Flow) -> Result<(i64, i64)> {
    let sums: Vec<(i64, i64)> = flow.ledger.db.rows(
        "SELECT count(p.*), coalesce(sum(p.amount), 0)::bigint FROM conflicts c
         JOIN postings p ON (p.stream, p.message_offset) = (c.stream, c.message_offset)",
    )?;
    sums.first().copied().context("no row")
}

/// What a person closes falls to 0 and stays there; `verify` is told with its findings.
fn what_is_open_and_what_verify_found_is_told() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("open")?, "open", 1)?;
    flow.send([Message::new("{"), Message::new("["), Message::tombstone()])?;
    flow.send(payments("open", 1))?;
    flow.send([payment("stripe/open/pi_0", "succeeded", "2026-01-02T03:04:05.000000Z", 99)])?;
    let earlier = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    earlier.finish()?;
    let consumer = flow.consume(&[])?;
    let of_code = |code| [("code", code)];
    wait_exactly(&consumer, "postonce_quarantine_open", &of_code("bad_json"), 2.0)?;
    wait_exactly(&consumer, "postonce_quarantine_open", &of_code("empty"), 1.0)?;
    wait_exactly(&consumer, "postonce_incidents_open", &of_code("conflict"), 1.0)?;
    for never in ["postonce_verify_last_findings", "postonce_verify_last_finished_timestamp_seconds"] {
        ensure!(shown(&consumer, never, &[])?.is_none(), "{never} before the first");
    }
    ensure!(shown(&consumer, "postonce_postgres_wal_bytes_total", &[])? > Some(0.0));
    // Two workers, and who asks for the gauges.
    wait_exactly(&consumer, "postonce_postgres_connections", &[], 3.0)?;

    let hashes: Vec<(String,)> =
        flow.ledger.db.rows("SELECT encode(message_hash, 'hex') FROM quarantine WHERE code = 'bad_json'")?;
    for (hash,) in &hashes {
        let args = ["quarantine", "dismiss", hash, "--why", "test traffic", "--person", "ada"];
        Said::by(&flow, &args)?.complaint(0, &[])?;
    }
    // A finding: a balance that its postings do not come to.
    flow.ledger.db.execute("UPDATE balances SET debits = debits + 1, credits = credits + 1")?;
    Said::by(&flow, &["verify"])?.complaint(3, &[])?;
    let findings: i64 = flow.ledger.db.one("SELECT max(findings) FROM verifications")?;
    wait_exactly(&consumer, "postonce_verify_last_findings", &[], findings as f64)?;
    wait_exactly(&consumer, "postonce_quarantine_open", &of_code("bad_json"), 0.0)?;
    wait_exactly(&consumer, "postonce_quarantine_open", &of_code("empty"), 1.0)?;
    flow.ledger.db.execute("UPDATE balances SET debits = debits - 1, credits = credits - 1")?;
    Said::by(&flow, &["verify"])?.complaint(0, &[])?;
    wait_exactly(&consumer, "postonce_verify_last_findings", &[], 0.0)?;
    let ended: i64 = flow.ledger.db.one("SELECT extract(epoch FROM max(finished_at))::bigint FROM verifications")?;
    wait_exactly(&consumer, "postonce_verify_last_finished_timestamp_seconds", &[], ended as f64)?;
    consumer.finish()?;
    flow.check()
}

/// A message that is in memory and cannot be posted is as old as its timestamp says, and what
/// is left of the topic's retention follows from that.
fn the_age_is_that_of_the_message() -> Result<()> {
    let kafka = kafka();
    let mut flow = Flow::new(&kafka, Ledger::fresh("age")?, "age", 1)?;
    flow.topic = unique("age");
    kafka.create_topic(&flow.topic, 1, &[("retention.ms", &DAY.to_string())])?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_claimed(1)?;
    let of_partition = [("topic", flow.topic.as_str()), ("partition", "0")];
    let (age, margin) = ("postonce_oldest_unposted_seconds", "postonce_retention_margin_seconds");
    wait_exactly(&consumer, age, &of_partition, 0.0)?;
    wait_exactly(&consumer, margin, &of_partition, 86_400.0)?;
    let barrier = Barrier::before(&flow.ledger, "INSERT", "batches")?;
    let sent = now()?;
    flow.send(payments("age", 3).into_iter().map(|message| message.timestamp(sent - 1_000_000)))?;
    barrier.wait_arrived(1, LIMIT)?;
    let page = get(consumer.port(), "/metrics")?.1;
    let of_page = |name| metric(&page, name, &of_partition).context(name);
    let passed = (now()? - sent) as f64 / 1e3;
    let (told, left) = (of_page(age)?, of_page(margin)?);
    ensure!((1_000.0..=1_000.0 + passed).contains(&told), "{told} s, {passed} s after it was sent");
    ensure!((told + left - 86_400.0).abs() < 0.001, "{told} and {left} are no day");
    barrier.open()?;
    flow.wait_done(LIMIT)?;
    wait_exactly(&consumer, age, &of_partition, 0.0)?;
    wait_exactly(&consumer, margin, &of_partition, 86_400.0)?;
    consumer.finish()?;
    flow.check_whole()
}

/// Also when no worker has a connection, a partition or a message any more.
fn what_waits_is_told_while_postgres_is_away() -> Result<()> {
    let (kafka, mut server) = (kafka(), start_postgres(&[])?);
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "away")?, "away", 1)?;
    flow.send(payments("before", 10))?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    let age = "postonce_oldest_unposted_seconds";
    wait_exactly(&consumer, age, &[], 0.0)?;
    ensure!(shown(&consumer, "postonce_retention_margin_seconds", &[])?.is_none(), "for ever is no margin");
    server.stop_fast()?;
    flow.send(payments("during", 10))?;
    let lives = consumer.metric("postonce_worker_lives_total", &[])?;
    consumer.wait_metric("postonce_worker_lives_total", &[], lives + 2.0, LIMIT)?;
    let then = shown(&consumer, age, &[])?.context("nobody knows the age any more")?;
    ensure!(then > 0.0, "nothing waits");
    consumer.wait_metric(age, &[], then + 1.0, LIMIT)?;
    server.start_again()?;
    flow.wait_done(LIMIT)?;
    wait_exactly(&consumer, age, &[], 0.0)?;
    consumer.finish()?;
    flow.check_whole()
}

/// A process that was cut off for so long that another holds its partition tells nothing of it
/// as soon as it is back.
fn what_another_process_holds_by_now_is_told_no_longer() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("moved")?, "moved", 1)?;
    let proxy = Proxy::start(&flow.ledger.url)?;
    let more = [&QUICK[..], &["--workers", "1"]].concat();
    let cut_off = flow.consume_through(proxy.url(), &more)?;
    flow.send(payments("first", 5))?;
    flow.wait_done(LIMIT)?;
    let told = ["postonce_lag_messages", "postonce_next_offset", "postonce_oldest_unposted_seconds"];
    for name in told {
        wait_until(LIMIT, name, || shown(&cut_off, name, &[]))?;
    }
    proxy.refuse();
    flow.send(payments("second", 5))?;
    cut_off.wait_metric("postonce_worker_lives_total", &[], 2.0, LIMIT)?;
    let other = flow.consume(&more)?;
    flow.wait_done(LIMIT)?;
    ensure!(shown(&cut_off, told[2], &[])? > Some(0.0), "it cannot know that another has posted them");
    proxy.accept();
    for name in told {
        wait_until(LIMIT, &format!("{name} to go"), || Ok(shown(&cut_off, name, &[])?.is_none().then_some(())))?;
        wait_until(LIMIT, name, || shown(&other, name, &[]))?;
    }
    cut_off.finish()?;
    other.finish()?;
    flow.check_whole()
}

/// Prometheus can see why; whoever runs the process may end it at any time.
fn a_stopped_consumer_says_why_until_it_is_told_to_end() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "lingers")?;
    flow.send(payments("lost", 5))?;
    postonce_tests::delete_before(&kafka, &flow.topic, 0, 13)?;
    let mut consumer = flow.consume(&["--stop-linger", "600"])?;
    wait_exactly(&consumer, "postonce_stopped", &[("reason", "gap")], 1.0)?;
    wait_exactly(&consumer, "postonce_workers_ready", &[], 0.0)?;
    ensure!(get(consumer.port(), "/livez")?.0 == 200, "it lives");
    let (status, why) = get(consumer.port(), "/readyz")?;
    ensure!(status == 503 && why.contains("stopped: ") && why.contains("offsets 10 to 12 were deleted"), "{why}");
    ensure!(consumer.is_running()?, "it has ended");
    consumer.terminate()?;
    let code = consumer.exit_code(LIMIT)?;
    ensure!(code == 11, "exit code {code}");
    // Nobody ends this one.
    let mut consumer = flow.consume(&["--stop-linger", "1"])?;
    let code = consumer.exit_code(LIMIT)?;
    ensure!(code == 11 && consumer.stderr().contains("a person is needed"), "{code}: {}", consumer.stderr());
    flow.check()
}

fn rules_that_are_refused_at_the_start_are_told() -> Result<()> {
    let kafka = kafka();
    let flow = ten_payments(&kafka, "altered")?;
    let altered = postonce_schema::POSITIONS_TOML.replace("income:fees", "income:other");
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), altered)?;
    let path = file.path().to_str().context("a path")?;
    let mut consumer = flow.consume(&["--stop-linger", "600", "--positions", path])?;
    wait_exactly(&consumer, "postonce_stopped", &[("reason", "rules")], 1.0)?;
    ensure!(get(consumer.port(), "/livez")?.0 == 200, "it lives");
    consumer.terminate()?;
    let code = consumer.exit_code(LIMIT)?;
    ensure!(code == 13, "exit code {code}");
    flow.check()
}

/// From its own statistics, which come every five seconds.
fn the_kafka_client_says_how_it_is() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("client")?, "client", 1)?;
    let consumer = flow.consume(&["--workers", "1", "-X", "statistics.interval.ms=200"])?;
    flow.wait_claimed(1)?;
    let of_partition = [("topic", flow.topic.as_str()), ("partition", "0")];
    wait_exactly(&consumer, "postonce_kafka_fetch_queue_messages", &of_partition, 0.0)?;
    // Each message is the answer to a fetch that waits at the broker.
    let mut beats = 0;
    for quantile in ["0.5", "0.99"] {
        let name = "postonce_kafka_broker_round_trip_seconds";
        wait_until(LIMIT, name, || {
            beats += 1;
            flow.send(payments(&format!("beat_{beats}"), 1))?;
            Ok(shown(&consumer, name, &[("quantile", quantile)])?.filter(|time| *time > 0.0))
        })?;
    }
    let page = get(consumer.port(), "/metrics")?.1;
    ensure!(
        page.contains(&format!("postonce_kafka_broker_disconnects_total{{broker=\"{}/", kafka.bootstrap())),
        "{page}"
    );
    // What the client has fetched waits there for a worker that waits for Postgres: it holds
    // one batch, and a report of the client comes only when it turns.
    flow.ledger.slow_down(0.5)?;
    flow.send(payments("queued", 3_000))?;
    drop(consumer);
    let consumer = flow.consume(&["--workers", "1", "--batch", "100", "-X", "statistics.interval.ms=200"])?;
    let queued = |name: &str| consumer.wait_metric(name, &of_partition, 1.0, LIMIT);
    queued("postonce_kafka_fetch_queue_messages")?;
    queued("postonce_kafka_fetch_queue_bytes")?;
    flow.ledger.slow_down(0.0)?;
    flow.wait_done(LIMIT)?;
    wait_exactly(&consumer, "postonce_kafka_fetch_queue_messages", &of_partition, 0.0)?;
    consumer.finish()?;
    flow.check_whole()
}
