//! A rebuild from the empty schema to the report.

use super::compare::{Compared, Comparison, Sides, balances_apart};
use super::finding::{Findings, What};
use super::outcomes::Judged;
use super::schema;
use crate::claim::Lineage;
use crate::config::Kafka;
use crate::database::Database;
use crate::read::{MinorUnits, snapshot};
use crate::registry::{self, RulesRefused};
use crate::replay::crew::{Job, share_out};
use crate::replay::plan::live_streams;
use crate::replay::post::Posting;
use crate::replay::{Plan, ReplayError, Span, runtime, same_topic, unless_stopped};
use crate::reread::{Ranges, Source};
use postonce_schema::{Decoder, Rules};
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// What is to be rebuilt, and where. Not Debug: properties hold passwords.
pub struct Rebuild {
    pub database: Database,
    pub kafka: Kafka,
    pub decoder: Decoder,
    /// The schema, in the same database.
    pub into: String,
    /// Threads, each with a Kafka consumer and a Postgres connection of its own.
    pub workers: usize,
    /// How many differences of each kind are named; all are counted.
    pub differences: usize,
    /// Whether the schema is dropped once the two were compared.
    pub drop: bool,
    /// Whether rules that are not those in use may be tried.
    pub what_if: bool,
}

/// Where a rebuild is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Offsets done, of so many.
    Posting(u64, u64),
    Comparing,
}

/// What a rebuild has found.
#[derive(Debug)]
pub struct Report {
    pub lineage: Lineage,
    pub spans: Vec<Span>,
    /// Offsets that the live ledger had not read yet.
    pub behind: u64,
    pub live: Judged,
    pub rebuilt: Judged,
    pub compared: Compared,
    pub findings: Findings,
    /// Where other rules were tried.
    pub what_if: Option<WhatIf>,
    pub posting_took: Duration,
    pub comparing_took: Duration,
    /// None where it was dropped.
    pub kept: Option<String>,
}

/// What other rules would have come to.
#[derive(Debug, Serialize)]
pub struct WhatIf {
    /// In what they are others.
    pub rules: String,
    pub accounts: Vec<AccountChange>,
}

/// An account that would hold something else. Debits less credits.
#[derive(Debug, Clone, Serialize)]
pub struct AccountChange {
    pub account: String,
    pub asset: String,
    pub live: MinorUnits,
    pub rebuilt: MinorUnits,
    pub difference: MinorUnits,
}

impl Report {
    pub fn is_equal(&self) -> bool {
        self.findings.differences() == 0
            && self.what_if.as_ref().is_none_or(|what_if| what_if.accounts.is_empty() && self.live == self.rebuilt)
    }

    /// Whether they would be equal if what these rules accept were not in quarantine.
    pub fn differs_by_quarantine_only(&self) -> bool {
        self.findings.counts.keys().all(|what| !what.is_difference() || *what == What::AcceptedNow)
    }
}

/// Rebuilds and compares. `watch` hears where it is and says whether to go on.
pub fn rebuild(run: &Rebuild, watch: &dyn Fn(Progress) -> bool) -> Result<Report, ReplayError> {
    let runtime = runtime()?;
    let mut live = runtime.block_on(run.database.connect())?;
    runtime.block_on(run.database.check_migrated(&mut live))?;
    let source = Source::open(&run.kafka)?;
    let plan = runtime.block_on(Plan::make(&source, &mut live, &[], &[]))?;
    let others = runtime.block_on(other_rules(&mut live, &run.decoder.rules))?;
    let others = match others {
        Some(refused) if !run.what_if => return Err(refused.into()),
        others => others.as_ref().map(in_what),
    };
    let rebuilt = runtime.block_on(schema::create(&run.database, &mut live, &run.into))?;
    let work = Work { run, watch, runtime, source, rebuilt };
    let report = work.build_and_compare(&mut live, plan, others);
    // Half built it is of use to nobody, and would be in the way of the next run.
    if run.drop || report.is_err() {
        // The first error is the one to tell.
        let dropped = work.runtime.block_on(schema::drop_schema(&work.rebuilt));
        return report.and_then(|report| dropped.map(|()| report));
    }
    report
}

/// In what these rules are not those in use; none where they are.
async fn other_rules(connection: &mut PgConnection, rules: &Rules) -> Result<Option<RulesRefused>, ReplayError> {
    match registry::check(connection, rules).await {
        Ok(new) => Ok(new.first().map(|version| RulesRefused::NotInUse { version: version.number })),
        Err(RulesRefused::Failure(failure)) => Err(failure.into()),
        Err(refused) => Ok(Some(refused)),
    }
}

/// For who tries other rules: what a consumer is told to do about them is no help.
fn in_what(refused: &RulesRefused) -> String {
    match refused {
        RulesRefused::Altered { version, line, was, now } => {
            format!("version {version}, line {line}\n  in use  {was}\n  here    {now}")
        }
        RulesRefused::Missing { version } => format!("version {version} is in use, and is not here"),
        RulesRefused::NotInUse { version } => format!("version {version} is here, and is not in use"),
        refused => refused.to_string(),
    }
}

struct Work<'r> {
    run: &'r Rebuild,
    watch: &'r dyn Fn(Progress) -> bool,
    runtime: Runtime,
    source: Source,
    rebuilt: Database,
}

impl Work<'_> {
    fn build_and_compare(
        &self,
        live: &mut PgConnection,
        plan: Plan,
        others: Option<String>,
    ) -> Result<Report, ReplayError> {
        let mut rebuilt = self.runtime.block_on(self.rebuilt.connect())?;
        self.runtime.block_on(registry::register(&mut rebuilt, &self.run.decoder.rules))?;
        let behind = plan.behind();
        let Plan { lineage, mut spans } = plan;
        let began = Instant::now();
        self.post(&lineage, ranges(&spans))?;
        // What is compared is this moment of the live ledger, and the rebuilt one is brought
        // to the very same offsets.
        let mut snapshot = self.runtime.block_on(snapshot(live))?;
        let rest = self.runtime.block_on(self.rest(&mut snapshot, &lineage, &mut spans))?;
        self.post(&lineage, rest)?;
        same_topic(&self.run.kafka, &lineage)?;
        let posting_took = began.elapsed();

        let began = Instant::now();
        let mut sides = Sides { live: &mut snapshot, rebuilt: &mut rebuilt };
        let comparing = self.compare(&mut sides, &lineage, &spans, others);
        let comparing = unless_stopped(comparing, || (self.watch)(Progress::Comparing));
        let (comparison, what_if) = self.runtime.block_on(comparing)?;
        let Comparison { live, rebuilt, compared, findings, .. } = comparison;
        let (comparing_took, kept) = (began.elapsed(), (!self.run.drop).then(|| self.run.into.clone()));
        Ok(Report {
            lineage: lineage.clone(),
            spans: spans.clone(),
            behind,
            live,
            rebuilt,
            compared,
            findings,
            what_if,
            posting_took,
            comparing_took,
            kept,
        })
    }

    fn post(&self, lineage: &Lineage, ranges: Ranges) -> Result<(), ReplayError> {
        let (job, total) = (Job::default(), ranges.left());
        let Rebuild { kafka, decoder, .. } = self.run;
        let posting = Posting { database: &self.rebuilt, kafka, decoder, topic: lineage, lineage, job: &job };
        let watch = |done| (self.watch)(Progress::Posting(done, total));
        share_out(ranges.split(self.run.workers), &job, &watch, |share| posting.post(share))?;
        Ok(())
    }

    /// What the live ledger has read since the plan was made. The spans then end where it is.
    async fn rest(
        &self,
        snapshot: &mut PgConnection,
        lineage: &Lineage,
        spans: &mut Vec<Span>,
    ) -> Result<Ranges, ReplayError> {
        let mut rest = Vec::new();
        for (partition, live) in live_streams(snapshot, lineage).await? {
            if !spans.iter().any(|span| span.partition == partition) {
                // A partition that was added meanwhile.
                let (log_start, log_end) = self.source.bounds(partition)?;
                spans.push(Span { partition, from: log_start, to: log_start, log_start, log_end, live: None });
            }
            for span in spans.iter_mut().filter(|span| span.partition == partition) {
                rest.push((partition, span.to, live.next_offset));
                (span.to, span.live) = (live.next_offset.max(span.to), Some(live));
            }
        }
        Ok(Ranges::new(rest))
    }

    async fn compare<'s>(
        &self,
        sides: &mut Sides<'_>,
        lineage: &'s Lineage,
        spans: &'s [Span],
        others: Option<String>,
    ) -> Result<(Comparison<'s>, Option<WhatIf>), ReplayError> {
        let mut comparison = Comparison::begin(sides, lineage, spans, self.run.differences).await?;
        let Some(rules) = others else {
            comparison.books(sides).await?;
            return Ok((comparison, None));
        };
        comparison.outcomes(sides).await?;
        let accounts = balances_apart(sides).await?.into_iter().map(|(account, live, rebuilt)| AccountChange {
            account: account.path.unwrap_or_else(|| account.account_id.to_string()),
            asset: account.asset.unwrap_or_default(),
            live: MinorUnits(live),
            rebuilt: MinorUnits(rebuilt),
            difference: MinorUnits(rebuilt - live),
        });
        Ok((comparison, Some(WhatIf { rules, accounts: accounts.collect() })))
    }
}

fn ranges(spans: &[Span]) -> Ranges {
    Ranges::new(spans.iter().map(|span| (span.partition, span.from, span.to)))
}
