//! A consumer that stands still (SIGSTOP: a paused virtual machine, a swapping host)
//! while others take over its partitions.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postonce_tests::{
    Consumer, Fault, Flow, Ledger, PrivatePostgres, Proxy, QUICK, Trial, kafka, payments, postgres, postgres_18, trials,
};

const LIMIT: Duration = Duration::from_secs(30);
/// How long after the freeze its batch must be posted by another: the session ends after
/// 1.5 s, and a transaction that is left idle only after 10 s.
const SECONDS: Duration = Duration::from_secs(8);

pub fn tests() -> Vec<Trial> {
    trials![
        a_zombies_transaction_dies_on_the_fence,
        a_zombie_is_too_late_for_its_batch,
        frozen_in_the_middle_of_a_copy,
        frozen_between_fence_and_commit,
        frozen_between_fence_and_commit_on_postgres_18,
    ]
}

/// A consumer that owns the only partition and reaches its database through a proxy,
/// and a second one that waits to take over.
struct Pair {
    flow: Flow,
    proxy: Proxy,
    frozen: Consumer,
    since: Instant,
    /// The other's own way to the database.
    way: Proxy,
    other: Consumer,
}

impl Pair {
    /// The first is frozen in its batch of ten payments of 100, at this fault.
    fn frozen_at(kafka: &postonce_tests::Kafka, server: &PrivatePostgres, fault: Fault) -> Result<Self> {
        let flow = Flow::new(kafka, Ledger::fresh_in(server, "frozen")?, "frozen", 1)?;
        let proxy = Proxy::start(&flow.ledger.url)?;
        let more = [&QUICK[..], &["--workers", "1"]].concat();
        let mut frozen = flow.consume_through(proxy.url(), &more)?;
        flow.send(payments("before", 5))?;
        flow.wait_offsets(5, LIMIT)?;
        frozen.wait_metric("postonce_events_total", &[], 5.0, LIMIT)?;
        let way = Proxy::start(&flow.ledger.url)?;
        let other = flow.consume_through(way.url(), &more)?;
        other.wait_ready(200, LIMIT)?;
        proxy.arm(fault);
        flow.send(payments("frozen", 10))?;
        proxy.wait_fired(LIMIT)?;
        frozen.freeze()?;
        ensure!(flow.ledger.offsets()? == 5, "the batch was committed already");
        Ok(Self { flow, proxy, frozen, since: Instant::now(), way, other })
    }

    /// The other has posted the batch; how long after the freeze.
    fn taken_over(&self) -> Result<Duration> {
        self.flow.wait_offsets(15, LIMIT)?;
        Ok(self.since.elapsed())
    }

    fn thaw(&mut self) -> Result<()> {
        self.proxy.release();
        self.frozen.thaw()
    }

    /// The first goes on where it was, its batch is rolled back, and nothing is doubled.
    fn goes_on(mut self) -> Result<()> {
        self.thaw()?;
        self.frozen.wait_metric("postonce_transaction_failures_total", &[], 1.0, LIMIT)?;
        self.flow.send(payments("after", 20))?;
        self.flow.wait_done(LIMIT)?;
        self.frozen.wait_ready(200, LIMIT)?;
        ensure!(self.other.is_running()? && self.frozen.is_running()?, "one of the two has ended");
        self.other.finish()?;
        // Alone again, it takes over.
        self.flow.send(payments("alone", 7))?;
        self.flow.wait_done(LIMIT)?;
        self.frozen.finish()?;
        let balance = self.flow.ledger.balance("assets:psp:stripe", "EUR")?;
        ensure!(balance == 42 * 100, "42 payments of 100 stand in the books as {balance}");
        self.flow.check_against_undisturbed()
    }
}

/// It has read its resources, and then it sleeps through the takeover. Its successor has
/// claimed the stream and not written yet: nothing but the fence can tell the zombie.
fn a_zombies_transaction_dies_on_the_fence() -> Result<()> {
    let kafka = kafka();
    let mut pair = Pair::frozen_at(&kafka, &postgres(), Fault::Hold("COPY events"))?;
    pair.way.arm(Fault::Hold("COPY events"));
    pair.way.wait_fired(LIMIT)?;
    pair.thaw()?;
    pair.frozen.wait_metric("postonce_fence_losses_total", &[], 1.0, LIMIT)?;
    ensure!(pair.frozen.failures("fence_lost")? == 1.0, "it was not the fence that it died on");
    ensure!(pair.flow.ledger.offsets()? == 5, "the zombie has moved the offset");
    ensure!(pair.flow.ledger.db.one::<i64>("SELECT count(*) FROM events")? == 5, "the zombie has left events");
    pair.way.release();
    pair.flow.wait_offsets(15, LIMIT)?;
    pair.goes_on()
}

/// The same, but its successor has posted the batch. The zombie meets its rows: a race
/// that it loses for good, and no damage that stops the process.
fn a_zombie_is_too_late_for_its_batch() -> Result<()> {
    let kafka = kafka();
    let mut pair = Pair::frozen_at(&kafka, &postgres(), Fault::Hold("COPY events"))?;
    pair.taken_over()?;
    let ended = pair.other.metric("postonce_former_owners_ended_total", &[])?;
    ensure!(ended == 0.0, "the zombie held no lock, and was ended nevertheless");
    pair.thaw()?;
    pair.frozen.wait_metric("postonce_fence_losses_total", &[], 1.0, LIMIT)?;
    pair.goes_on()
}

/// No time-out of Postgres ends a COPY whose client has fallen silent. It has written
/// events, resources and accounts by then, and its successor must write the same rows.
fn frozen_in_the_middle_of_a_copy() -> Result<()> {
    let kafka = kafka();
    let pair = Pair::frozen_at(&kafka, &postgres(), Fault::HoldInCopy("COPY postings"))?;
    let took = pair.taken_over()?;
    ensure!(took < SECONDS, "a frozen COPY kept the other waiting for {took:?}");
    let ended = pair.other.metric("postonce_former_owners_ended_total", &[])?;
    ensure!(ended >= 1.0, "nobody ended the former owner's transaction");
    pair.goes_on()
}

fn frozen_between_fence_and_commit() -> Result<()> {
    frozen_before_commit(&postgres())
}

fn frozen_between_fence_and_commit_on_postgres_18() -> Result<()> {
    match postgres_18() {
        Some(server) => frozen_before_commit(&server),
        None => Ok(()),
    }
}

/// It holds the stream's row: its successor's claim waits for it.
fn frozen_before_commit(server: &PrivatePostgres) -> Result<()> {
    let kafka = kafka();
    let pair = Pair::frozen_at(&kafka, server, Fault::Hold("COMMIT"))?;
    let took = pair.taken_over()?;
    ensure!(took < SECONDS, "a frozen fence kept the other waiting for {took:?}");
    let ended = pair.other.metric("postonce_former_owners_ended_total", &[])?;
    ensure!(ended >= 1.0, "nobody ended the former owner's transaction");
    pair.goes_on()
}
