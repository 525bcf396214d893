//! `postonce migrate`: creates the ledger's schema and brings it up to date.

use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::table;
use anyhow::Context;
use postonce_consumer::database::{Database, MIGRATIONS, applied_migrations};
use serde::Serialize;
use std::collections::BTreeSet;
use std::process::ExitCode;

const HELP: &str = "\
Safe to run again, and by two at once. Who runs it owns the tables. Grant the role
postonce_consumer to the login of `postonce consume`, postonce_auditor to people who
use the commands that read, postonce_operator to those who decide, postonce_reader to
dashboards and SQL, and postonce_payload_reader beside these to who may see the bytes
of messages (before migration 9 postonce_reader could read all of it). End consumers from before migrations 5 and 6 first: what they would
write after them, `trace` and `statement` do not find.

Examples:
  postonce migrate --database-url postgres://postgres@localhost/books
  postonce migrate --schema postonce_rebuilt";

/// Create the ledger's tables or bring them up to date
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Serialize)]
struct Migration {
    version: i64,
    description: String,
    applied_now: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let database = Database::new(&args.database.database_url, &args.database.schema)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    let before = runtime.block_on(async {
        let before = applied(&database).await?;
        database.migrate().await?;
        anyhow::Ok(before)
    })?;
    let migrations: Vec<Migration> = MIGRATIONS
        .iter()
        .map(|migration| Migration {
            version: migration.version,
            description: migration.description.clone().into_owned(),
            applied_now: !before.contains(&migration.version),
        })
        .collect();
    table::print(&match args.output.output {
        Output::Json => table::json(&migrations)?,
        Output::Table => {
            let applied = migrations.iter().filter(|migration| migration.applied_now);
            let mut text = String::new();
            for Migration { version, description, .. } in applied {
                text.push_str(&format!("applied {version:04} {description}\n"));
            }
            text + &format!("{database}: up to date, {} migrations\n", migrations.len())
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The versions that are there already; none in a database that is new.
async fn applied(database: &Database) -> anyhow::Result<BTreeSet<i64>> {
    let mut connection = database.connect().await?;
    let applied = applied_migrations(&mut connection).await?;
    Ok(applied.into_iter().map(|(version, _)| version).collect())
}
