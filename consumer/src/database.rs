//! How every part of Postonce reaches Postgres.

use crate::error::DatabaseError;
use sqlx::migrate::{Migration, Migrator};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};
use std::str::FromStr;
use std::time::Duration;

/// The migrations of `schema/migrations`, compiled in.
pub static MIGRATIONS: Migrator = sqlx::migrate!("../schema/migrations");

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A database and the schema in it that holds the ledger. It may hold a password,
/// so it prints as host and database.
#[derive(Clone)]
pub struct Database {
    options: PgConnectOptions,
    schema: String,
}

impl Database {
    /// From a URL `postgres://user:password@host:port/database` and a schema name
    /// of `[a-z_][a-z0-9_]*`.
    pub fn new(url: &str, schema: &str) -> Result<Self, DatabaseError> {
        check_name(schema)?;
        // sqlx's message may repeat the URL with its password: only the kind is told.
        let options = PgConnectOptions::from_str(url).map_err(|_| DatabaseError::BadUrl)?;
        let options = options
            .application_name("postonce")
            .log_statements(tracing::log::LevelFilter::Trace)
            // The server finds out within 25 s that a client's machine is gone, and
            // lets go of the locks that its transaction held.
            .options([("tcp_keepalives_idle", "10"), ("tcp_keepalives_interval", "5"), ("tcp_keepalives_count", "3")])
            .options([("search_path", schema), ("timezone", "UTC"), ("jit", "off")])
            // "Already exists" is no news to whoever migrates twice.
            .options([("client_min_messages", "warning")]);
        Ok(Self { options, schema: schema.to_owned() })
    }

    /// The same database, another schema.
    pub fn beside(&self, schema: &str) -> Result<Self, DatabaseError> {
        check_name(schema)?;
        // Of an option that is given twice Postgres takes the last.
        Ok(Self { options: self.options.clone().options([("search_path", schema)]), schema: schema.to_owned() })
    }

    /// Where the server listens.
    pub(crate) fn port(&self) -> u16 {
        self.options.get_port()
    }

    /// The schema that holds the ledger.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// A connection for reading and for people's commands. Who asks a question of the
    /// whole ledger sees for himself that it takes a second: no warning with its SQL.
    pub async fn connect(&self) -> Result<PgConnection, DatabaseError> {
        let options = self.options.clone().log_slow_statements(tracing::log::LevelFilter::Off, Duration::MAX);
        self.open(&options).await
    }

    /// A worker's connection. It only ever looks rows up by key, so plans must not
    /// depend on statistics: on a fresh database the planner would join whole tables
    /// (seen: 80 µs an event instead of 2). A transaction that its client has
    /// forgotten ends by itself.
    pub async fn connect_worker(&self) -> Result<PgConnection, DatabaseError> {
        let options = self.options.clone().application_name("postonce-worker").options([
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("idle_in_transaction_session_timeout", "10s"),
            ("statement_timeout", "20s"),
        ]);
        self.open(&options).await
    }

    async fn open(&self, options: &PgConnectOptions) -> Result<PgConnection, DatabaseError> {
        match tokio::time::timeout(CONNECT_TIMEOUT, options.connect()).await {
            Ok(Ok(connection)) => {
                crate::sockets::send_at_once(options.get_port());
                Ok(connection)
            }
            Ok(Err(source)) => Err(DatabaseError::Unreachable { at: self.to_string(), source }),
            Err(_) => Err(DatabaseError::TimedOut { at: self.to_string(), after: CONNECT_TIMEOUT }),
        }
    }

    /// Creates the schema and brings it up to date. Safe to run twice, and by two at once.
    /// A schema that a later release has brought further is left as it is: this one works
    /// on it, and whoever rolls an update back migrates first, too.
    pub async fn migrate(&self) -> Result<(), DatabaseError> {
        let mut connection = self.connect().await?;
        // The name was checked to be a plain identifier.
        let create = format!("CREATE SCHEMA IF NOT EXISTS {}", self.schema);
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.map_err(DatabaseError::Query)?;
        let mut migrations = Migrator::with_migrations(MIGRATIONS.iter().cloned().collect());
        migrations.set_ignore_missing(true);
        migrations.run(&mut connection).await.map_err(DatabaseError::Migration)
    }

    /// Refuses a database that `migrate` has not brought to this program's version.
    pub async fn check_migrated(&self, connection: &mut PgConnection) -> Result<(), DatabaseError> {
        let applied = applied_migrations(connection).await?;
        let is_applied = |wanted: &Migration| {
            applied.iter().any(|(version, checksum)| *version == wanted.version && **checksum == *wanted.checksum)
        };
        if MIGRATIONS.iter().all(is_applied) {
            Ok(())
        } else {
            Err(DatabaseError::NotMigrated { at: self.to_string() })
        }
    }
}

fn check_name(schema: &str) -> Result<(), DatabaseError> {
    let mut bytes = schema.bytes();
    let named = bytes.next().is_some_and(|b| matches!(b, b'a'..=b'z' | b'_'))
        && bytes.all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && schema.len() <= 63;
    if named { Ok(()) } else { Err(DatabaseError::BadSchemaName(schema.to_owned())) }
}

/// Version and checksum of the migrations that the schema has; none where there is no ledger.
pub async fn applied_migrations(connection: &mut PgConnection) -> Result<Vec<(i64, Vec<u8>)>, DatabaseError> {
    let known: bool =
        sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(&mut *connection).await?;
    if !known {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations WHERE success").fetch_all(connection).await?)
}

/// `host:port/database, schema postonce`
impl std::fmt::Display for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (host, port) = (self.options.get_host(), self.options.get_port());
        let database = self.options.get_database().unwrap_or("(default)");
        write!(f, "{host}:{port}/{database}, schema {}", self.schema)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
