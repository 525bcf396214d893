//! The transaction is one: a failure at any of its steps leaves nothing behind, and
//! a connection that breaks during COMMIT is settled right, however that ended.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Fault, Flow, Ledger, Message, PrivatePostgres, Proxy, QUICK, Trial, kafka, payment, payments, postgres,
    postgres_18, trials, wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);

pub fn tests() -> Vec<Trial> {
    trials![
        a_failure_after_any_step_leaves_nothing,
        cut_before_commit,
        cut_after_commit,
        cut_after_commit_on_postgres_18,
        cut_while_commit_is_under_way,
        cut_while_commit_never_arrives,
    ]
}

/// Where the failure is injected: what a statement has just written is still there.
const STEPS: [(&str, &str); 10] = [
    ("INSERT", "events"),
    ("INSERT", "resources"),
    ("UPDATE", "resources"),
    ("INSERT", "accounts"),
    ("INSERT", "postings"),
    ("INSERT", "quarantine"),
    ("INSERT", "conflicts"),
    ("INSERT", "incidents"),
    ("INSERT", "balances"),
    ("INSERT", "batches"),
];

/// All that a batch could leave behind. A claim is not a batch's.
const LEFT_BEHIND: &str = "
    SELECT concat_ws(' ',
        (SELECT count(*) FROM events), (SELECT count(*) FROM resources), (SELECT sum(revision) FROM resources),
        (SELECT count(*) FROM accounts), (SELECT count(*) FROM postings), (SELECT count(*) FROM conflicts),
        (SELECT sum(times_seen) FROM quarantine), (SELECT count(*) FROM incidents),
        (SELECT sum(debits) FROM balances), (SELECT sum(credits) FROM balances), (SELECT count(*) FROM batches),
        (SELECT string_agg(concat_ws(' ', next_offset, batch_seq, message_chain, batch_chain), ' ' ORDER BY stream) FROM streams))";

/// A batch that writes to every table: a new resource with new accounts, one that was
/// there and changes, a refused message, a conflict and its incident.
fn batch(step: usize) -> Vec<Message> {
    let resource = format!("stripe/acct_1/pi_{step}");
    let of = |merchant: &str, message: Message| {
        let text = String::from_utf8(message.value.unwrap()).unwrap().replace("m_1", merchant);
        Message::new(text).key(resource.clone())
    };
    let merchant = format!("m_of_step_{step}");
    vec![
        of(&merchant, payment(&resource, "succeeded", "2026-01-02T03:04:05Z", 100)),
        of(&merchant, payment(&resource, "succeeded", "2026-01-02T03:04:05Z", 101)),
        payment("stripe/acct_1/known", "succeeded", &format!("2026-01-02T03:04:{step:02}Z"), 1_000 + step as i64),
        Message::new(format!("no JSON {step}")).key("poison"),
    ]
}

fn a_failure_after_any_step_leaves_nothing() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("steps")?, "steps", 1)?;
    let db = &flow.ledger.db;
    db.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'injected'; END $$",
    )?;
    // One partition, one batch: what is sent together arrives together.
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_claimed(1)?;
    flow.send([payment("stripe/acct_1/known", "created", "2026-01-01T00:00:00Z", 1)])?;
    flow.wait_done(LIMIT)?;

    let fail_at = |number: usize, trigger: &str, table: &str, reason: &str| -> Result<()> {
        let before: String = db.one(LEFT_BEHIND)?;
        let (offsets, failures) = (flow.ledger.offsets()?, consumer.failures(reason)?);
        db.execute(&format!("CREATE {trigger} EXECUTE FUNCTION fail()"))?;
        flow.send(batch(number))?;
        let labels = [("reason", reason)];
        consumer.wait_metric("postonce_transaction_failures_total", &labels, failures + 2.0, LIMIT)?;
        ensure!(db.one::<String>(LEFT_BEHIND)? == before, "something is left behind");
        wait_until(LIMIT, "the trigger's end", || {
            db.execute(&format!("SET lock_timeout = '1s'; DROP TRIGGER injected ON {table}")).map(Some)
        })?;
        flow.wait_offsets(offsets + 4, LIMIT)?;
        flow.check()
    };
    for (number, (event, table)) in STEPS.iter().enumerate() {
        let trigger = format!("TRIGGER injected AFTER {event} ON {table} FOR EACH STATEMENT");
        fail_at(number, &trigger, table, "unavailable").with_context(|| format!("{event} {table}"))?;
    }
    // A claim updates its stream, too, but not its offset.
    let trigger = "TRIGGER injected AFTER UPDATE OF next_offset ON streams FOR EACH STATEMENT";
    fail_at(STEPS.len(), trigger, "streams", "unavailable").context("the fence")?;
    let trigger = "CONSTRAINT TRIGGER injected AFTER INSERT ON batches DEFERRABLE INITIALLY DEFERRED FOR EACH ROW";
    fail_at(STEPS.len() + 1, trigger, "batches", "commit_unknown").context("COMMIT")?;

    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// What the consumer has counted as posted itself after its connection broke at
/// COMMIT, and what the database holds.
fn cut(server: &PrivatePostgres, fault: Fault, meanwhile: impl FnOnce(&Flow, &Proxy) -> Result<()>) -> Result<f64> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "cut")?, "cut", 1)?;
    let proxy = Proxy::start(&flow.ledger.url)?;
    let mut consumer = flow.consume_through(proxy.url(), &[&QUICK[..], &["--workers", "1"]].concat())?;
    flow.wait_claimed(1)?;
    proxy.arm(fault);
    flow.send(payments("cut", 100))?;
    proxy.wait_fired(LIMIT)?;
    meanwhile(&flow, &proxy)?;
    flow.wait_done(LIMIT)?;
    consumer.wait_metric("postonce_worker_lives_total", &[], 2.0, LIMIT)?;
    ensure!(consumer.failures("commit_unknown")? == 1.0, "the COMMIT was not taken for unknown");
    consumer.wait_ready(200, LIMIT)?;
    let counted = consumer.metric("postonce_events_total", &[])?;
    let lives = consumer.metric("postonce_worker_lives_total", &[])?;
    ensure!(lives == 2.0, "the second life has been told a wrong offset: {lives} lives");
    flow.send(payments("later", 50))?;
    flow.wait_done(LIMIT)?;
    ensure!(consumer.is_running()?, "the consumer has ended");
    consumer.finish()?;
    let balance = flow.ledger.balance("assets:psp:stripe", "EUR")?;
    ensure!(balance == 150 * 100, "150 payments of 100 stand in the books as {balance}");
    flow.check_against_undisturbed()?;
    Ok(counted)
}

/// The server never heard of it: all of it is read and posted again.
fn cut_before_commit() -> Result<()> {
    let counted = cut(&postgres(), Fault::CutBefore("COMMIT"), |_, _| Ok(()))?;
    ensure!(counted == 100.0, "the second time is the first that counts, not {counted}");
    Ok(())
}

/// The server has done it: the next claim shows that, and nothing is read again.
fn cut_after_commit() -> Result<()> {
    cut_after_commit_on(&postgres())
}

fn cut_after_commit_on_postgres_18() -> Result<()> {
    match postgres_18() {
        Some(server) => cut_after_commit_on(&server),
        None => Ok(()),
    }
}

fn cut_after_commit_on(server: &PrivatePostgres) -> Result<()> {
    let counted = cut(server, Fault::CutAfter("COMMIT"), |flow, _| {
        ensure!(flow.ledger.offsets()? == 100, "the server has not committed");
        Ok(())
    })?;
    ensure!(counted == 0.0, "{counted} messages were read again");
    Ok(())
}

/// The worst: the client has gone, its COMMIT is still on its way. The next claim must
/// wait for it and only then say where the stream goes on.
fn cut_while_commit_is_under_way() -> Result<()> {
    let counted = cut(&postgres(), Fault::Delay("COMMIT"), |flow, proxy| {
        wait_until(LIMIT, "the next claim to wait for the old transaction", || {
            let waiting: i64 = flow.ledger.db.one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                 AND wait_event_type = 'Lock' AND query LIKE '%streams%'",
            )?;
            Ok((waiting > 0).then_some(()))
        })?;
        proxy.release();
        Ok(())
    })?;
    ensure!(counted == 0.0, "{counted} messages were read again although their COMMIT came through");
    Ok(())
}

/// The same, and it never comes: the claim ends the transaction that it waits for.
fn cut_while_commit_never_arrives() -> Result<()> {
    let counted = cut(&postgres(), Fault::Delay("COMMIT"), |_, _| Ok(()))?;
    ensure!(counted == 100.0, "the second time is the first that counts, not {counted}");
    Ok(())
}
