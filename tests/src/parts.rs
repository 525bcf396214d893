//! The broker and the servers that all tests share: each starts when first
//! asked for, and [`stop_parts`] ends them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use postonce::private_postgres::{PrivatePostgres, StartOptions};

use crate::database::Db;
use crate::kafka::Kafka;

static KAFKA: Shared<Kafka> = Shared::new();
static POSTGRES: Shared<PrivatePostgres> = Shared::new();
static POSTGRES_18: Shared<PrivatePostgres> = Shared::new();

/// The shared broker. Not to be stopped by a test: `Kafka::start()` gives one
/// that may be.
///
/// # Panics
/// When it cannot be started; the reason is told to every test that asks.
pub fn kafka() -> Arc<Kafka> {
    KAFKA.get(Kafka::start).unwrap_or_else(|reason| panic!("no Kafka: {reason}"))
}

/// The shared Postgres: this machine's, or the one in `POSTONCE_TEST_PG_BIN`.
/// Not to be stopped by a test: [`start_postgres`] gives one that may be.
///
/// # Panics
/// When it cannot be started.
pub fn postgres() -> Arc<PrivatePostgres> {
    POSTGRES.get(|| start_postgres(&[])).unwrap_or_else(|reason| panic!("no Postgres: {reason}"))
}

/// A shared Postgres 18, if the set-up could fetch one for this machine.
///
/// # Panics
/// When it is there and cannot be started.
pub fn postgres_18() -> Option<Arc<PrivatePostgres>> {
    let bin_dir = postgres_18_programs()?;
    let start = || PrivatePostgres::start(StartOptions { bin_dir: Some(bin_dir), settings: Vec::new() });
    Some(POSTGRES_18.get(start).unwrap_or_else(|reason| panic!("no Postgres 18: {reason}")))
}

/// A Postgres 18 of the test's own, if there is one.
pub fn start_postgres_18() -> Result<Option<PrivatePostgres>> {
    let start = |bin_dir| PrivatePostgres::start(StartOptions { bin_dir: Some(bin_dir), settings: Vec::new() });
    postgres_18_programs().map(start).transpose()
}

fn postgres_18_programs() -> Option<PathBuf> {
    Some(repository().join("target/postgres18/bin")).filter(|programs| programs.join("postgres").is_file())
}

/// A Postgres of the test's own, to be stopped, killed and started again.
pub fn start_postgres(settings: &[(&str, &str)]) -> Result<PrivatePostgres> {
    PrivatePostgres::start(StartOptions {
        bin_dir: std::env::var_os("POSTONCE_TEST_PG_BIN").map(|given| repository().join(given)),
        settings: settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
    })
}

/// Stops what was started, whatever became of the tests.
pub fn stop_parts() {
    KAFKA.stop();
    POSTGRES.stop();
    POSTGRES_18.stop();
}

/// An empty database of a test's own.
pub struct Database {
    pub name: String,
    pub url: String,
    pub db: Db,
}

impl Database {
    /// In the shared Postgres.
    pub fn fresh(label: &str) -> Result<Self> {
        Self::fresh_in(&postgres(), label)
    }

    /// In this Postgres.
    pub fn fresh_in(server: &PrivatePostgres, label: &str) -> Result<Self> {
        let name = unique(label);
        server.create_database(&name)?;
        let url = server.url(&name);
        Ok(Self { db: Db::new(&url), name, url })
    }
}

/// A name that no other test of this run has: `label_7`.
pub fn unique(label: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("{label}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The root of the repository.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

struct Shared<T>(Mutex<Option<Result<Arc<T>, String>>>);

impl<T> Shared<T> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Starts it at most once, even when that fails.
    fn get(&self, start: impl FnOnce() -> Result<T>) -> Result<Arc<T>, String> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert_with(|| start().map(Arc::new).map_err(|error| format!("{error:#}"))).clone()
    }

    fn stop(&self) {
        // The last holder's drop stops it. A thread that a failed test left behind may still
        // hold it; then the end of this process does.
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
