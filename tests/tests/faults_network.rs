//! Ways to Postgres and to Kafka that delay, narrow, cut, reset and lose, under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{Fault, Flow, Kafka, Ledger, Network, Proxy, QUICK, Said, Trial, kafka, payments, trials};

const LIMIT: Duration = Duration::from_secs(120);
const STORM: Duration = Duration::from_secs(20);

pub fn tests() -> Vec<Trial> {
    trials![a_storm_on_both_ways, a_claim_is_never_answered, a_batch_is_never_answered]
}

/// Two consumers, a storm on the ways of both, a load that does not end before it.
/// `POSTONCE_TEST_SEED` chooses another storm.
fn a_storm_on_both_ways() -> Result<()> {
    let seed: u64 = std::env::var("POSTONCE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    weathered(seed, STORM).with_context(|| format!("POSTONCE_TEST_SEED={seed}"))
}

fn weathered(seed: u64, lasts: Duration) -> Result<()> {
    let to_kafka = Network::start()?;
    let kafka = Kafka::start_behind(to_kafka.port())?;
    to_kafka.lead_to(kafka.behind_port());
    let server = postonce_tests::postgres();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "storm")?, "storm", 6)?;
    let to_postgres = Network::to(server.port())?;
    let url = to_postgres.url(&flow.ledger.url)?;
    // A request that is lost is given up after a second and a half, not a minute.
    let hasty = ["--workers", "2", "-X", "socket.timeout.ms=1500", "-X", "fetch.wait.max.ms=100"];
    let more = [&QUICK[..], &hasty].concat();
    let consume = || flow.consume_from(&to_kafka.address(), &url, &more);
    let (mut one, mut other) = (consume()?, consume()?);
    flow.wait_claimed(6)?;

    let stop = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut part = 0;
            while !stop.load(Ordering::Relaxed) {
                flow.send_load(1_000, seed + part)?;
                part += 1;
                thread::sleep(Duration::from_millis(50));
            }
            anyhow::Ok(())
        });
        let storm = scope.spawn(|| to_postgres.storm(seed, lasts));
        let done = to_kafka.storm(seed + 1, lasts);
        let done = storm.join().map(|too| done + too);
        stop.store(true, Ordering::Relaxed);
        load.join().map_err(|_| anyhow::anyhow!("the producer panicked"))??;
        done.map_err(|_| anyhow::anyhow!("the storm panicked"))
    })?;
    flow.wait_done(LIMIT)?;
    let lives = one.metric("postonce_worker_lives_total", &[])? + other.metric("postonce_worker_lives_total", &[])?;
    ensure!(lives > 8.0, "{done} faults were no storm: four workers have had {lives} lives");
    for consumer in [&mut one, &mut other] {
        ensure!(consumer.is_running()?, "a consumer has ended");
        consumer.wait_ready(200, LIMIT)?;
    }
    one.finish()?;
    other.finish()?;
    Said::by(&flow, &["verify", "--deep"])?.complaint(0, &[])?;
    flow.check_against_undisturbed()
}

/// The connection is there and stays there, as after a firewall has forgotten it: what
/// the claim asks never arrives. The worker gives it up by itself.
fn a_claim_is_never_answered() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("mute")?, "mute", 1)?;
    let proxy = Proxy::start(&flow.ledger.url)?;
    flow.send(payments("mute", 10))?;
    proxy.arm(Fault::Hold("INSERT INTO streams"));
    let mut consumer = flow.consume_through(proxy.url(), &["--workers", "1"])?;
    proxy.wait_fired(LIMIT)?;
    flow.wait_done(LIMIT)?;
    let lives = consumer.metric("postonce_worker_lives_total", &[])?;
    ensure!(lives == 2.0, "it took {lives} lives");
    ensure!(consumer.is_running()?, "the consumer has ended");
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// The same in the middle of the load. What the server holds open for the silent one
/// is ended by its next claim.
fn a_batch_is_never_answered() -> Result<()> {
    let kafka = kafka();
    let server = postonce_tests::postgres();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "silent")?, "silent", 2)?;
    let way = Network::to(server.port())?;
    let mut consumer = flow.consume_through(&way.url(&flow.ledger.url)?, &["--workers", "2", "--batch", "200"])?;
    flow.wait_claimed(2)?;
    flow.ledger.slow_down(0.2)?;
    flow.send_load(4_000, 6)?;
    flow.wait_offsets(400, LIMIT)?;
    // Each worker has a transaction open now, or will have at once.
    way.fall_silent();
    consumer.wait_ready(503, LIMIT)?;
    ensure!(consumer.is_running()?, "the process has ended");
    ensure!(flow.ledger.offsets()? < 4_000, "the load was over");
    flow.ledger.slow_down(0.0)?;
    way.serve_again();
    consumer.wait_ready(200, LIMIT)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}
