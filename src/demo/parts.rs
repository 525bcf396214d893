//! What the demo runs on: a private Postgres, a mock broker in this process, a
//! directory for the consumer's log. Dropping it removes everything.

use super::Settings;
use super::progress::say;
use crate::private_postgres::{PrivatePostgres, StartOptions};
use anyhow::{Context, Result, ensure};
use postonce_consumer::database::Database;
use postonce_producer::generate::Generated;
use postonce_producer::{Config, Producer, send_all};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use sqlx::postgres::PgConnection;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub const TOPIC: &str = "payments";
const DATABASE: &str = "ledger";
pub const SCHEMA: &str = "postonce";
const KAFKA_TIMEOUT: Duration = Duration::from_secs(10);

/// The mock broker silently drops the oldest messages of a partition that holds more
/// than 5 MB (compressed). This many of ours, sent twice, come to about a third of that.
const EVENTS_PER_PARTITION: u64 = 20_000;

/// Lines of the consumer's log that are shown when something fails.
const SHOWN_LINES: usize = 25;

// Fields are dropped in this order: clients before servers.
pub struct Parts {
    connection: PgConnection,
    runtime: Runtime,
    cluster: MockCluster<'static, DefaultProducerContext>,
    partitions: i32,
    postgres: PrivatePostgres,
    directory: TempDir,
}

/// One partition of the log, as the broker tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log {
    pub partition: i32,
    pub start: i64,
    pub end: i64,
}

impl Parts {
    pub fn start(settings: &Settings) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("postonce-demo-").tempdir()?;
        let postgres = PrivatePostgres::start(StartOptions::default())?;
        postgres.create_database(DATABASE)?;
        let cluster = MockCluster::new(1).context("the mock broker does not start")?;
        let partitions = i32::try_from(settings.events.div_ceil(EVENTS_PER_PARTITION))?.max(8);
        cluster.create_topic(TOPIC, partitions, 1).context("the mock broker makes no topic")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
        let database = Database::new(&postgres.url(DATABASE), SCHEMA)?;
        let connection = runtime.block_on(async {
            database.migrate().await?;
            database.connect().await
        })?;
        Ok(Self { connection, runtime, cluster, partitions, postgres, directory })
    }

    pub fn postgres_version(&self) -> u32 {
        self.postgres.major_version()
    }

    pub fn partitions(&self) -> i32 {
        self.partitions
    }

    pub fn brokers(&self) -> String {
        self.cluster.bootstrap_servers()
    }

    pub fn database_url(&self) -> String {
        self.postgres.url(DATABASE)
    }

    /// Removed at the end.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Where the consumers write their logs, one behind the other.
    pub fn consumer_log(&self) -> PathBuf {
        self.directory.path().join("consumer.log")
    }

    /// Asks the ledger.
    pub fn ask<T>(&mut self, question: impl AsyncFnOnce(&mut PgConnection) -> Result<T>) -> Result<T> {
        self.runtime.block_on(question(&mut self.connection))
    }

    /// Sends messages; an error unless each was confirmed.
    pub fn send(&self, events: impl Iterator<Item = Generated>, progress: impl FnMut(u64)) -> Result<()> {
        let mut config = Config::new(self.brokers(), TOPIC);
        // Larger batches compress better, and the mock broker has little room.
        config.properties.push(("linger.ms".to_owned(), "50".to_owned()));
        config.properties.push(("compression.type".to_owned(), "zstd".to_owned()));
        let producer = Producer::new(&config)?;
        producer.check(KAFKA_TIMEOUT)?;
        let report = send_all(&producer, events, progress)?;
        let reason = report.failures.first().map_or("", |failure| failure.reason.as_str());
        ensure!(report.failed == 0, "{} of {} messages were not delivered: {reason}", report.failed, report.sent);
        self.log().map(drop)
    }

    /// Every partition of the log. What the mock broker has dropped cannot be consumed,
    /// so that is an error of the demo and never a finding about the ledger.
    pub fn log(&self) -> Result<Vec<Log>> {
        let kafka: BaseConsumer = ClientConfig::new().set("bootstrap.servers", self.brokers()).create()?;
        let mut log = Vec::new();
        for partition in 0..self.partitions {
            let (start, end) = kafka.fetch_watermarks(TOPIC, partition, KAFKA_TIMEOUT).context("the log's offsets")?;
            ensure!(
                start == 0,
                "the mock broker has dropped the first {start} messages of partition {partition}: it keeps 5 MB of each; \
                 try fewer --events"
            );
            log.push(Log { partition, start, end });
        }
        Ok(log)
    }

    /// The end of the consumer's log, on stderr.
    pub fn show_log(&self) {
        let bytes = fs::read(self.consumer_log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        let shown = lines.get(lines.len().saturating_sub(SHOWN_LINES)..).unwrap_or_default();
        if !shown.is_empty() {
            eprintln!("\nThe end of the consumer's log:\n{}\n", shown.join("\n"));
        }
    }

    /// Leaves Postgres running, and says how to look into the ledger and how to stop it.
    pub fn keep(self) -> Result<String> {
        let url = self.database_url();
        drop(self.connection);
        say("")?;
        let detached = self.postgres.detach()?;
        Ok(format!(
            "Postgres goes on. To look into the ledger:\n  \
               psql '{url}?options=-csearch_path%3D{SCHEMA}' -c 'SELECT * FROM trial_balance'\n  \
               DATABASE_URL='{url}' postonce status\n\
             To stop it and remove its data:\n  {}",
            detached.stop_line
        ))
    }
}
