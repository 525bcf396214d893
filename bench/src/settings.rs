//! What the parts run with: printed beside every figure, and refused where a figure would
//! be worth nothing.

use crate::parts::{self, Parts};
use anyhow::{Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::thread::available_parallelism;

/// Without one of these a commit may be lost, and every database is fast.
const DURABLE: [&str; 3] = ["fsync", "synchronous_commit", "full_page_writes"];

/// What else a figure depends on.
const SHOWN: [&str; 8] = [
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_compression",
    "wal_level",
    "wal_sync_method",
    "autovacuum",
    "data_checksums",
];

/// The machine and what runs on it.
#[derive(Debug, Serialize)]
pub struct Settings {
    pub postonce: &'static str,
    /// A build without optimisation says nothing about times.
    pub optimised: bool,
    pub postgres: String,
    pub kafka: String,
    pub cores: usize,
    pub processor: String,
    pub memory_bytes: u64,
    pub directory: String,
    pub postgres_settings: BTreeMap<String, String>,
}

impl Settings {
    /// What was measured, and on what.
    pub fn in_a_line(&self) -> String {
        let Self { postonce, postgres, kafka, cores, processor, memory_bytes, .. } = self;
        let memory = memory_bytes >> 30;
        format!(
            "Postonce {postonce}, Postgres {postgres}, Apache Kafka {kafka}; {cores} cores ({processor}), {memory} GB"
        )
    }
}

/// Asks the server, not its configuration: that may have been overruled.
pub fn read(parts: &Parts) -> Result<Settings> {
    let directory = parts.postgres.data_dir();
    ensure!(
        !parts::in_memory(&directory)?,
        "Postgres keeps its data in memory ({}): nothing measured there is true of a disk; choose a --directory on one",
        directory.display()
    );
    let mut postgres_settings = BTreeMap::new();
    for name in DURABLE.iter().chain(&SHOWN) {
        let value: String = parts.server.one(&format!("SELECT current_setting('{name}')"))?;
        postgres_settings.insert((*name).to_owned(), value);
    }
    refuse_what_loses_commits(&postgres_settings)?;
    Ok(Settings {
        postonce: env!("CARGO_PKG_VERSION"),
        optimised: !cfg!(debug_assertions),
        postgres: parts.server.one("SELECT current_setting('server_version')")?,
        kafka: kafka_version(),
        cores: available_parallelism().map_or(1, usize::from),
        processor: processor(),
        memory_bytes: parts::memory()?,
        directory: parts.directory.display().to_string(),
        postgres_settings,
    })
}

fn refuse_what_loses_commits(settings: &BTreeMap<String, String>) -> Result<()> {
    for name in DURABLE {
        let value = settings.get(name).map_or("unknown", String::as_str);
        ensure!(
            value == "on",
            "{name} is {value}: Postgres would be measured without its promise that a commit stays; set it on"
        );
    }
    Ok(())
}

/// By the name of its jar.
fn kafka_version() -> String {
    let jars = fs::read_dir(postonce_tests::repository().join("target/kafka/lib"));
    let names = jars.into_iter().flatten().flatten().map(|jar| jar.file_name().to_string_lossy().into_owned());
    let version = |name: String| Some(name.strip_prefix("kafka-clients-")?.strip_suffix(".jar")?.to_owned());
    names.filter_map(version).next().unwrap_or_else(|| "unknown".to_owned())
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = |line: &str| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned());
    text.lines().find_map(named).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_of_durability_is_looked_at() {
        let on: BTreeMap<String, String> = DURABLE.iter().map(|name| ((*name).to_owned(), "on".to_owned())).collect();
        refuse_what_loses_commits(&on).unwrap();
        for name in DURABLE {
            for value in ["off", "local", "remote_write"] {
                let mut one_off = on.clone();
                one_off.insert(name.to_owned(), value.to_owned());
                let error = refuse_what_loses_commits(&one_off).unwrap_err();
                assert!(error.to_string().starts_with(name), "{error}");
            }
            let mut unknown = on.clone();
            unknown.remove(name);
            refuse_what_loses_commits(&unknown).unwrap_err();
        }
    }
}
