//! SIGKILL at random moments, and SIGTERM in the middle of the load.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postonce_tests::{Flow, Ledger, Trial, kafka, payments, trials};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const EVENTS: u64 = 100_000;
const KILLS: i64 = 20;

pub fn tests() -> Vec<Trial> {
    trials![kill_nine_twenty_times, sigterm_under_load, a_restart_does_not_wait_for_an_idle_worker]
}

/// Twenty kills spread over one run, most of them in an open transaction, some while
/// the new process is still starting.
fn kill_nine_twenty_times() -> Result<()> {
    let seed: u64 = std::env::var("POSTONCE_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(9);
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("kill")?, "kill", 4)?;
    flow.send_load(EVENTS, seed)?;
    flow.ledger.slow_down(0.02)?;
    // A killed member holds its partitions until its session has ended.
    let more = ["--batch", "1000", "-X", "session.timeout.ms=600", "-X", "heartbeat.interval.ms=150"];

    let mut in_transaction = 0;
    let mut consumer = flow.consume(&more)?;
    for kill in 1..=KILLS {
        if kill % 4 == 0 {
            // One life that may not even get to its first claim.
            thread::sleep(Duration::from_millis(random.random_range(1..600)));
            consumer.kill()?;
            consumer = flow.consume(&more)?;
        }
        // The topic ends with the last kill at the earliest.
        let share = i64::try_from(EVENTS)? * kill / (KILLS + 6);
        flow.wait_offsets(share, Duration::from_secs(60))?;
        thread::sleep(Duration::from_millis(random.random_range(0..120)));
        let open: i64 = flow.ledger.db.one(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
             AND application_name = 'postonce-worker' AND xact_start IS NOT NULL",
        )?;
        ensure!(consumer.is_running()?, "the consumer has ended by itself");
        consumer.kill()?;
        in_transaction += i64::from(open > 0);
        consumer = flow.consume(&more)?;
    }
    ensure!(flow.ledger.offsets()? < i64::try_from(EVENTS)?, "the last kill came after the last message");
    ensure!(in_transaction >= KILLS / 2, "only {in_transaction} of {KILLS} kills hit a transaction");
    flow.wait_done(Duration::from_secs(120))?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// A worker that holds no partition must leave the group, too: the next process would
/// wait until its session has ended.
fn a_restart_does_not_wait_for_an_idle_worker() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("restart")?, "restart", 1)?;
    let session = Duration::from_secs(20);
    for round in 0..4 {
        let consumer = flow.consume(&["--workers", "3", "-X", "session.timeout.ms=20000"])?;
        flow.send(payments(&format!("round_{round}"), 10))?;
        flow.wait_done(session / 2)?;
        consumer.finish()?;
    }
    flow.check()
}

/// It ends with 0 within seconds, and the next one goes on.
fn sigterm_under_load() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("term")?, "term", 2)?;
    flow.send_load(30_000, 3)?;
    flow.ledger.slow_down(0.05)?;
    for part in 1..=3 {
        let consumer = flow.consume(&["--batch", "500"])?;
        flow.wait_offsets(part * 5_000, Duration::from_secs(60))?;
        let began = Instant::now();
        consumer.finish()?;
        let took = began.elapsed();
        ensure!(took < Duration::from_secs(5), "it took {took:?} to end");
    }
    ensure!(flow.ledger.offsets()? < 30_000, "the load was over");
    flow.check()?;
    flow.ledger.slow_down(0.0)?;
    let consumer = flow.consume(&[])?;
    flow.wait_done(Duration::from_secs(60))?;
    consumer.finish()?;
    flow.check_against_undisturbed()
}
