//! What Postgres says to `config check --connect`.

use super::check::Finding;
use anyhow::Context;
use postonce_consumer::database::{Database, MIGRATIONS, applied_migrations};
use sqlx::postgres::PgConnection;

/// Postgres 15 is the oldest that the tests run on.
const OLDEST: i32 = 150_000;

/// Whether it is there, new enough, migrated, and keeps what it has confirmed. `place` is
/// where the URL is set.
pub fn ask(database: &Database, place: &str) -> anyhow::Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    runtime.block_on(async {
        let mut connection = match database.connect().await {
            Ok(connection) => connection,
            Err(error) => return Ok(vec![Finding::failed("postgres", place, &error.into())]),
        };
        let mut found = vec![version(&mut connection, database).await?];
        found.push(durability(&mut connection).await?);
        found.push(migrations(&mut connection, database).await);
        Ok(found)
    })
}

async fn version(connection: &mut PgConnection, database: &Database) -> anyhow::Result<Finding> {
    let (number, name, standby): (i32, String, bool) = sqlx::query_as(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery()",
    )
    .fetch_one(connection)
    .await?;
    Ok(if number < OLDEST {
        Finding::problem("postgres", format!("{database}: version {name}; 15 or newer is needed"))
    } else if standby {
        Finding::problem("postgres", format!("{database}: a standby, which takes no writes; name the primary"))
    } else {
        Finding::ok("postgres", format!("{database}: version {name}"))
    })
}

async fn durability(connection: &mut PgConnection) -> anyhow::Result<Finding> {
    let (fsync, pages, commit): (String, String, String) = sqlx::query_as(
        "SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')",
    )
    .fetch_one(connection)
    .await?;
    let said = format!("fsync={fsync}, full_page_writes={pages}, synchronous_commit={commit}");
    Ok(if fsync != "on" || pages != "on" {
        let what = "a crash leaves damaged tables, which nothing heals but a backup; set both on";
        Finding::problem("durability", format!("{said}: {what}"))
    } else if commit == "off" {
        let what = "a crash forgets the last commits; they come again from the topic, but people have seen them";
        Finding::warning("durability", format!("{said}: {what}"))
    } else {
        Finding::ok("durability", said)
    })
}

async fn migrations(connection: &mut PgConnection, database: &Database) -> Finding {
    let applied = match applied_migrations(connection).await {
        Ok(applied) => applied.len(),
        Err(error) => return Finding::problem("ledger", format!("{error}; grant the login postonce_consumer")),
    };
    match database.check_migrated(connection).await {
        Ok(()) => Finding::ok("ledger", format!("schema {}, {applied} migrations applied", database.schema())),
        Err(error) => Finding::problem(
            "ledger",
            format!("{error} ({applied} of {} migrations are applied)", MIGRATIONS.iter().count()),
        ),
    }
}
