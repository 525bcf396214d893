//! How far the ledger is, seen from outside: what has been committed, and nothing else.

use super::consumer::Consumer;
use super::go_on;
use super::parts::Parts;
use super::progress::Step;
use anyhow::{Result, bail, ensure};
use sqlx::postgres::PgConnection;
use std::thread;
use std::time::{Duration, Instant};

/// Often, so that a crash comes where it is wanted.
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// Longer than a killed consumer's partitions rest.
const STALLED_AFTER: Duration = Duration::from_secs(60);
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

/// What a watch has seen.
pub struct Watched {
    pub outcomes: u64,
    /// When the consumer first held a partition.
    pub claimed: Instant,
    /// From then to the end of the watch.
    pub busy: Duration,
    /// Transactions that were open at its end.
    pub in_transaction: i64,
}

struct Look {
    outcomes: u64,
    epochs: i64,
    sessions: i64,
    in_transaction: i64,
}

/// Waits until half of all messages have an outcome, and then for a moment in which
/// a transaction is open.
pub fn until_halfway(parts: &mut Parts, consumer: &mut Consumer, step: &Step, all: u64) -> Result<Watched> {
    let late = all - all / 8;
    watch(parts, consumer, step, 0, |look| {
        look.outcomes >= late || (look.outcomes >= all / 2 && look.in_transaction > 0)
    })
}

/// Waits until `all` messages have an outcome; the bar shows those after the first
/// `before`.
pub fn until(parts: &mut Parts, consumer: &mut Consumer, step: &Step, before: u64, all: u64) -> Result<Watched> {
    let watched = watch(parts, consumer, step, before, |look| look.outcomes >= all)?;
    ensure!(watched.outcomes == all, "{} outcomes for {all} messages", watched.outcomes);
    Ok(watched)
}

/// Waits until Postgres has seen that the consumer is gone, and says how far it came.
pub fn after_the_end(parts: &mut Parts) -> Result<u64> {
    let until = Instant::now() + NOTICED_WITHIN;
    loop {
        let now = parts.ask(look)?;
        if now.sessions == 0 {
            return Ok(now.outcomes);
        }
        ensure!(Instant::now() < until, "Postgres still has sessions of a consumer that is gone");
        thread::sleep(LOOK_EVERY);
    }
}

fn watch(
    parts: &mut Parts,
    consumer: &mut Consumer,
    step: &Step,
    before: u64,
    done: impl Fn(&Look) -> bool,
) -> Result<Watched> {
    let first = parts.ask(look)?;
    let mut claimed = None;
    let mut moved = (first.outcomes, Instant::now());
    loop {
        go_on()?;
        consumer.check_alive()?;
        let now = parts.ask(look)?;
        if claimed.is_none() && now.epochs > first.epochs {
            claimed = Some(Instant::now());
        }
        step.at(now.outcomes.saturating_sub(before));
        if done(&now) {
            let claimed = claimed.unwrap_or(moved.1);
            let Look { outcomes, in_transaction, .. } = now;
            return Ok(Watched { outcomes, claimed, busy: claimed.elapsed(), in_transaction });
        }
        if now.outcomes != moved.0 {
            moved = (now.outcomes, Instant::now());
        }
        if moved.1.elapsed() > STALLED_AFTER {
            bail!("the consumer stands still: {} outcomes for {STALLED_AFTER:?}", now.outcomes);
        }
        thread::sleep(LOOK_EVERY);
    }
}

async fn look(connection: &mut PgConnection) -> Result<Look> {
    // Offsets begin at 0 (`Parts::log` has seen to it), so their sum counts messages.
    let (outcomes, epochs, sessions, in_transaction): (i64, i64, i64, i64) = sqlx::query_as(
        "SELECT coalesce(sum(next_offset), 0)::bigint, coalesce(sum(epoch), 0)::bigint,
                (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'postonce-worker'),
                (SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'postonce-worker' AND backend_xid IS NOT NULL)
         FROM streams",
    )
    .fetch_one(connection)
    .await?;
    Ok(Look { outcomes: u64::try_from(outcomes)?, epochs, sessions, in_transaction })
}
