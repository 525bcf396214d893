//! The schema of the rebuilt ledger. Nothing of anybody else's is ever in it.

use crate::database::Database;
use crate::replay::ReplayError;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnection;

/// Creates the schema, which must not hold anything yet, and migrates it.
pub async fn create(live: &Database, connection: &mut PgConnection, name: &str) -> Result<Database, ReplayError> {
    let rebuilt = live.beside(name)?;
    if name == live.schema() {
        return Err(ReplayError::Start(format!("--into {name} is the live ledger; choose another schema")));
    }
    let held: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1",
    )
    .bind(name)
    .fetch_one(&mut *connection)
    .await?;
    if held > 0 {
        let what = match offsets(&rebuilt).await {
            Some(offsets) => format!("a ledger with {offsets} offsets"),
            None => "other tables".to_owned(),
        };
        return Err(ReplayError::Start(format!(
            "schema {name} holds {what} already; choose another one by --into, or, if nobody needs it, DROP SCHEMA {name} CASCADE"
        )));
    }
    match rebuilt.migrate().await {
        Ok(()) => Ok(rebuilt),
        Err(error) => {
            // The first error is the one to tell.
            let _ = drop_schema(&rebuilt).await;
            Err(error.into())
        }
    }
}

/// How far the ledger is that is there; none where it is no ledger.
async fn offsets(database: &Database) -> Option<i64> {
    let mut connection = database.connect().await.ok()?;
    let sum = "SELECT coalesce(sum(next_offset - first_offset), 0)::bigint FROM streams";
    sqlx::query_scalar(sum).fetch_one(&mut connection).await.ok()
}

pub async fn drop_schema(rebuilt: &Database) -> Result<(), ReplayError> {
    let mut connection = rebuilt.connect().await?;
    // The name was checked to be a plain identifier.
    let drop = format!("DROP SCHEMA IF EXISTS {} CASCADE", rebuilt.schema());
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await?;
    Ok(())
}
