//! The transaction: a batch becomes rows, the offset moves with them.
//!
//! ```text
//! 1 read       the resources of the batch, without locks
//! 2 look up    the ids of those events that are not greater than their resource
//! 3 decide     in memory; from here on nothing may be refused
//! 4 write      events, resources (compare-and-set), accounts, postings and the way to them,
//!              what is set aside
//! 5 balances   hot rows: late and short
//! 6 batch      one outcome for each offset, both chains
//! 7 fence      last: only the owner of the streams may commit
//! 8 commit
//! ```
//!
//! Every step writes in the order of its key, so two workers never wait for each
//! other in a circle. Nothing is visible until all of it is committed.

use crate::batch::{Advance, Batch, advance};
use crate::claim::{Claim, Claims};
use crate::decide::{Decision, decide, not_greater};
use crate::distance::Distance;
use crate::failure::Failure;
use crate::message::Outcome;
use crate::store::{KnownAccounts, Transaction};
use crate::turnover::Sum;
use postonce_schema::Rules;
use sqlx::PgConnection;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What a committed batch has done.
#[derive(Debug, Default)]
pub struct Applied {
    /// The claims as they stand now.
    pub claims: Vec<Claim>,
    pub outcomes: BTreeMap<Outcome, u64>,
    pub rejected: BTreeMap<&'static str, u64>,
    pub duplicates: BTreeMap<Distance, u64>,
    pub posted: Vec<Posted>,
    /// How long each step took.
    pub steps: Vec<(&'static str, Duration)>,
}

/// The postings of one kind of event in one asset.
#[derive(Debug)]
pub struct Posted {
    pub kind: String,
    /// `None` for every unit that is no currency.
    pub currency: Option<String>,
    pub postings: u64,
    pub minor_units: u64,
}

/// Applies one batch. On a failure nothing of it is left behind.
pub async fn apply(
    connection: &mut PgConnection,
    accounts: &mut KnownAccounts,
    rules: &Rules,
    claims: &Claims,
    batch: &Batch<'_, '_>,
) -> Result<Applied, Failure> {
    let mut clock = Clock::start();
    let arrivals = batch.arrivals();
    let mut transaction = Transaction::begin(connection).await?;

    let held = transaction.read_resources(&arrivals, rules).await?;
    clock.step("read");
    let known = transaction.look_up(not_greater(&arrivals, &held)).await?;
    clock.step("look_up");
    let decision = decide(&arrivals, held, known);
    let advances = advance(batch, &decision, claims)?;
    let sides = decision.sides();
    clock.step("decide");

    // From here on nothing may be refused.
    transaction.write_events(&decision.events).await?;
    clock.step("events");
    transaction.write_resources(&decision.resources).await?;
    clock.step("resources");
    let new_accounts = transaction.write_accounts(&decision.postings, &sides, accounts).await?;
    transaction.write_postings(&decision.postings).await?;
    transaction.write_account_postings(&sides).await?;
    clock.step("postings");
    transaction.close_accepted(&batch.accepted_copies()).await?;
    transaction.set_aside(&batch.set_aside(), &decision.conflicts, &decision.incidents).await?;
    clock.step("set_aside");
    transaction.add_to_balances(&sides).await?;
    clock.step("balances");
    transaction.write_batches(&advances).await?;
    clock.step("batch");
    transaction.fence(&advances, rules).await?;
    clock.step("fence");
    transaction.commit().await?;
    clock.step("commit");

    accounts.learn(new_accounts);
    Ok(applied(batch, &decision, advances, clock))
}

fn applied(batch: &Batch<'_, '_>, decision: &Decision<'_, '_>, advances: Vec<Advance>, clock: Clock) -> Applied {
    let duplicates = decision.duplicates.clone();
    let mut applied = Applied { duplicates, steps: clock.steps, ..Applied::default() };
    let posted = |sum: &Sum<'_>| Posted {
        kind: sum.kind().to_owned(),
        currency: sum.currency().map(str::to_owned),
        postings: sum.postings,
        minor_units: sum.minor_units,
    };
    applied.posted = decision.turnover.sums().iter().map(posted).collect();
    for (_, outcome) in &decision.outcomes {
        *applied.outcomes.entry(*outcome).or_default() += 1;
    }
    for reject in batch.received.iter().filter_map(|received| received.decoded.as_ref().err()) {
        *applied.outcomes.entry(Outcome::Rejected).or_default() += 1;
        *applied.rejected.entry(reject.code()).or_default() += 1;
    }
    applied.claims = advances.into_iter().map(|advance| advance.after).collect();
    applied
}

struct Clock {
    last: Instant,
    steps: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn start() -> Self {
        Self { last: Instant::now(), steps: Vec::with_capacity(11) }
    }

    fn step(&mut self, name: &'static str) {
        let now = Instant::now();
        self.steps.push((name, now - self.last));
        self.last = now;
    }
}
