//! Two workers at the same row, and partitions that move under load.

use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_tests::{
    Barrier, Db, Flow, Ledger, Message, PrivatePostgres, QUICK, Trial, kafka, payment, postgres, postgres_18, trials,
    wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);

pub fn tests() -> Vec<Trial> {
    trials![
        two_workers_meet_a_new_resource,
        two_workers_meet_a_new_resource_on_postgres_18,
        the_obvious_upsert_posts_both,
        rebalances_under_load_classic,
        rebalances_under_load_consumer_protocol,
    ]
}

fn two_workers_meet_a_new_resource() -> Result<()> {
    two_workers_meet(&postgres())
}

fn two_workers_meet_a_new_resource_on_postgres_18() -> Result<()> {
    match postgres_18() {
        Some(server) => two_workers_meet(&server),
        None => Ok(()),
    }
}

/// Two workers have both read a resource (first as absent, then as present), and
/// each holds another event of it: a payment of 100 that is restated to 120. Both
/// wait at a barrier between their read and their first write. Whoever is slower must
/// find out, and post only the difference.
///
/// With `write_resources` as an upsert (tried: COPY into a temporary table, then
/// INSERT … ON CONFLICT (resource_id) DO UPDATE) this test fails with a balance of 220;
/// [`the_obvious_upsert_posts_both`] keeps that experiment.
fn two_workers_meet(server: &PrivatePostgres) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "meet")?, "meet", 2)?;
    let consumer = flow.consume(&["--workers", "2"])?;
    // The worker that joins first has both at first.
    wait_until(LIMIT, "an owner for each partition", || {
        let owners: i64 = flow.ledger.db.one("SELECT count(DISTINCT backend_pid) FROM streams")?;
        Ok((owners == 2).then_some(()))
    })?;

    let account = |amount| flow.ledger.balance("assets:psp:stripe", "EUR").map(|balance| (balance, amount));
    let meet = |resource: &str, first: i64, second: i64| -> Result<()> {
        let barrier = Barrier::before(&flow.ledger, "INSERT", "events")?;
        let at = |second| format!("2026-01-02T03:04:{second:02}Z");
        flow.send([
            payment(resource, "succeeded", &at(1), first).partition(0),
            payment(resource, "succeeded", &at(2), second).partition(1),
        ])?;
        barrier.wait_arrived(2, LIMIT)?;
        barrier.open()?;
        Ok(())
    };

    meet("stripe/acct_1/new", 100, 120)?;
    flow.wait_offsets(2, LIMIT)?;
    let (balance, expected) = account(120)?;
    ensure!(balance == expected, "a payment of {expected} stands in the books as {balance}");

    flow.send([payment("stripe/acct_1/known", "created", "2026-01-01T00:00:00Z", 1).partition(0)])?;
    flow.wait_offsets(3, LIMIT)?;
    meet("stripe/acct_1/known", 10, 30)?;
    flow.wait_offsets(5, LIMIT)?;
    let (balance, expected) = account(150)?;
    ensure!(balance == expected, "payments of {expected} stand in the books as {balance}");

    ensure!(consumer.metric("postonce_retries_total", &[])? >= 2.0, "nobody has lost a race: the two did not meet");
    consumer.finish()?;
    flow.check()
}

/// The counter-example: the same two workers as two plain connections that write a
/// resource with INSERT … ON CONFLICT DO UPDATE. Both have read nothing, both post all.
fn the_obvious_upsert_posts_both() -> Result<()> {
    let ledger = Ledger::fresh("upsert")?;
    ledger
        .db
        .execute("CREATE TABLE upserted (id int PRIMARY KEY, amount bigint); CREATE TABLE posted (amount bigint)")?;
    let workers = [(Db::new(&ledger.url), 100), (Db::new(&ledger.url), 120)];
    let mut held = Vec::new();
    for (worker, _) in &workers {
        worker.execute("BEGIN")?;
        held.push(worker.one::<i64>("SELECT coalesce(sum(amount), 0)::bigint FROM upserted WHERE id = 1")?);
    }
    for ((worker, amount), held) in workers.iter().zip(held) {
        worker.execute(&format!(
            "INSERT INTO upserted VALUES (1, {amount}) ON CONFLICT (id) DO UPDATE SET amount = excluded.amount;
             INSERT INTO posted VALUES ({amount} - {held});
             COMMIT"
        ))?;
    }
    let balance: i64 = ledger.db.one("SELECT sum(amount)::bigint FROM posted")?;
    ensure!(balance == 220, "the upsert has become right ({balance}): then compare-and-set is not needed");
    Ok(())
}

fn rebalances_under_load_classic() -> Result<()> {
    rebalances_under_load(&QUICK)
}

fn rebalances_under_load_consumer_protocol() -> Result<()> {
    rebalances_under_load(&["--group-protocol", "consumer"])
}

/// Two consumers work; a third joins and leaves twice, once by SIGTERM and once by
/// SIGKILL. Each offset has exactly one outcome, and the books are those of a quiet run.
fn rebalances_under_load(more: &[&str]) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("rebalance")?, "rebalance", 6)?;
    // Small batches: partitions move in the middle of the load, not after it.
    let more = [more, &["--batch", "100"]].concat();
    flow.send_load(20_000, 7)?;
    // Each batch takes a moment longer, so that the load lasts for all that happens.
    flow.ledger.slow_down(0.12)?;
    let mut two = [flow.consume(&more)?, flow.consume(&more)?];
    flow.wait_offsets(1_000, LIMIT)?;
    let posts = |consumer: &postonce_tests::Consumer| {
        wait_until(LIMIT, "the third consumer's first batch", || {
            Ok((consumer.metric("postonce_events_total", &[])? > 0.0).then_some(()))
        })
    };

    let third = flow.consume(&more)?;
    posts(&third)?;
    third.finish()?;
    let mut third = flow.consume(&more)?;
    posts(&third)?;
    third.kill()?;
    let at = flow.ledger.offsets()?;
    ensure!(at < 20_000, "the load was over before the third consumer left");
    flow.ledger.slow_down(0.0)?;

    flow.wait_done(LIMIT * 2)?;
    for consumer in &mut two {
        ensure!(consumer.is_running()?, "a consumer did not survive a rebalance");
        ensure!(consumer.metric("postonce_rebalances_total", &[])? >= 2.0, "nothing was rebalanced");
    }
    // The newest come last, and still alive they must all arrive.
    flow.send((0..100).map(|n| {
        let message: Message = payment(&format!("stripe/late/{n}"), "succeeded", "2026-02-01T00:00:00Z", 5);
        message.partition(n % 6)
    }))?;
    flow.wait_done(LIMIT)?;
    for consumer in two {
        consumer.finish()?;
    }
    flow.check_against_undisturbed()
}
