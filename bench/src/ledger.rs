//! A fresh database for a run, and whether its books are right at the end.

use crate::parts::Parts;
use anyhow::{Context, Result, ensure};
use postonce_consumer::database::Database;
use postonce_consumer::registry;
use postonce_consumer::verify::{Request, verify};
use postonce_schema::Decoder;
use postonce_tests::{Db, unique};
use std::future::Future;
use tokio::runtime::{Builder, Runtime};

/// The schema in its database.
const SCHEMA: &str = "postonce";

/// A ledger of one run. Dropping it drops the database: autovacuum would go on in it.
pub struct Ledger<'p> {
    parts: &'p Parts,
    name: String,
    pub url: String,
    /// Plain SQL.
    pub db: Db,
    /// As the product connects to it.
    pub database: Database,
}

impl<'p> Ledger<'p> {
    /// With all migrations of the product, and a checkpoint behind them.
    pub fn fresh(parts: &'p Parts, label: &str) -> Result<Self> {
        let ledger = Self::empty(parts, label)?;
        runtime()?.block_on(ledger.database.migrate())?;
        ledger.checkpoint()?;
        Ok(ledger)
    }

    /// With no tables at all, for a baseline that brings its own.
    pub fn empty(parts: &'p Parts, label: &str) -> Result<Self> {
        let name = unique(&format!("bench_{label}"));
        parts.postgres.create_database(&name)?;
        let url = parts.postgres.url(&name);
        let database = Database::new(&url, SCHEMA)?;
        Ok(Self { parts, name, db: Db::new(&url), url, database })
    }

    /// Writes down what is only in memory, so that each run begins at the same place of a
    /// checkpoint interval.
    pub fn checkpoint(&self) -> Result<()> {
        self.db.execute("CHECKPOINT")?;
        Ok(())
    }

    /// What a consumer does at its start: the fence counts the rules.
    pub fn register_rules(&self, decoder: &Decoder) -> Result<()> {
        runtime()?.block_on(async {
            let mut connection = self.database.connect().await?;
            registry::register(&mut connection, &decoder.rules).await?;
            anyhow::Ok(())
        })
    }

    /// Offsets that have an outcome, in all streams.
    pub fn offsets(&self) -> Result<u64> {
        let offsets: i64 =
            self.db.one("SELECT coalesce(sum(next_offset - first_offset), 0)::bigint FROM postonce.streams")?;
        Ok(u64::try_from(offsets)?)
    }

    /// Bytes on disk of every table, with its indexes, of one schema.
    pub fn disk_bytes(&self, schema: &str) -> Result<u64> {
        self.checkpoint()?;
        let bytes: i64 = self.db.one(&format!(
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
             WHERE relkind IN ('r', 'm') AND relnamespace = '{schema}'::regnamespace"
        ))?;
        Ok(u64::try_from(bytes)?)
    }

    /// A run that was fast and wrong is no figure: so many events, so many postings, and both
    /// sides of the books are equal.
    pub fn check(&self, events: u64, postings: u64) -> Result<()> {
        let [known, posted]: [i64; 2] = [
            self.db.one("SELECT count(*) FROM postonce.events")?,
            self.db.one("SELECT count(*) FROM postonce.postings")?,
        ];
        ensure!(u64::try_from(known)? == events, "{}: {known} events in the ledger, {events} were sent", self.name);
        ensure!(u64::try_from(posted)? == postings, "{}: {posted} postings instead of {postings}", self.name);
        let balanced: bool = self.db.one(
            "SELECT coalesce(bool_and(difference = 0), false)
                AND sum(debits) = (SELECT sum(amount) FROM postonce.postings) FROM postonce.trial_balance",
        )?;
        ensure!(balanced, "{}: the trial balance is not zero, or not the sum of the postings", self.name);
        let open: i64 = self
            .db
            .one("SELECT (SELECT count(*) FROM postonce.quarantine) + (SELECT count(*) FROM postonce.incidents)")?;
        ensure!(open == 0, "{}: {open} messages were refused or became incidents", self.name);
        Ok(())
    }

    /// The product's own proof: balances, postings, positions, offsets, both chains.
    pub fn verify(&self, decoder: &Decoder) -> Result<()> {
        let report = runtime()?.block_on(async {
            let mut connection = self.database.connect().await?;
            let request = Request { decoder, since_last: false, topic: None };
            anyhow::Ok(verify(&mut connection, &self.database, &request, &|_| ()).await?)
        })?;
        let found: Vec<&str> =
            report.checks.iter().filter(|check| check.findings > 0).map(|check| check.check).collect();
        ensure!(report.findings == 0, "{}: verify has {} findings in {}", self.name, report.findings, found.join(", "));
        Ok(())
    }
}

impl Drop for Ledger<'_> {
    fn drop(&mut self) {
        // A bench that has failed has more to tell than this.
        let _ = self.parts.server.execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
    }
}

/// For one thread.
pub fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("no async runtime")
}

/// Runs the same work on so many threads, each with a runtime of its own, from one moment on.
pub fn on_threads<T: Send>(count: usize, work: impl Fn(usize, &Runtime) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let work = &work;
                scope.spawn(move || work(number, &runtime()?))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread of the bench panicked"))?)
            .collect()
    })
}

/// For callers that only have a future.
pub fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(future)
}
