//! Plain SQL for a test that is plain code.

use std::sync::Mutex;

use anyhow::{Context, Result};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection, Decode, FromRow, Postgres, Type};
use tokio::runtime::{Builder, Runtime};

/// One connection, opened when first needed and again after it broke.
pub struct Db {
    url: String,
    inner: Mutex<Inner>,
}

struct Inner {
    runtime: Runtime,
    connection: Option<PgConnection>,
}

impl Db {
    pub fn new(url: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime for one connection");
        Self { url: url.to_owned(), inner: Mutex::new(Inner { runtime, connection: None }) }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// To be called when the server has been away: the next question opens a new connection.
    pub fn reconnect(&self) {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner).connection = None;
    }

    /// Runs one or more statements; how many rows they touched.
    pub fn execute(&self, sql: &str) -> Result<u64> {
        self.run(sql, async |connection| {
            Ok(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await?.rows_affected())
        })
    }

    /// The one value of the one row of a query.
    pub fn one<T>(&self, sql: &str) -> Result<T>
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres> + Send + Unpin,
    {
        self.run(sql, async |connection| sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(connection).await)
    }

    /// All rows of a query, as tuples.
    pub fn rows<T>(&self, sql: &str) -> Result<Vec<T>>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        self.run(sql, async |connection| sqlx::query_as(AssertSqlSafe(sql.to_owned())).fetch_all(connection).await)
    }

    fn run<T>(&self, sql: &str, ask: impl AsyncFnOnce(&mut PgConnection) -> sqlx::Result<T>) -> Result<T> {
        let mut inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Inner { runtime, connection } = &mut *inner;
        let answer = runtime.block_on(async {
            let mut live = match connection.take() {
                Some(live) => live,
                None => PgConnection::connect(&self.url).await?,
            };
            let answer = ask(&mut live).await;
            if answer.as_ref().err().is_none_or(leaves_connection_usable) {
                *connection = Some(live);
            }
            answer
        });
        answer.with_context(|| format!("in {sql}"))
    }
}

/// Only an error of the statement itself does, not the server's last word to a
/// session that it ends (class 57P).
fn leaves_connection_usable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(told) => !told.code().is_some_and(|code| code.starts_with("57P")),
        sqlx::Error::RowNotFound | sqlx::Error::ColumnDecode { .. } => true,
        _ => false,
    }
}
