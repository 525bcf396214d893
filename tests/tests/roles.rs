//! Who may do what with the books.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postonce_tests::{
    Db, Flow, Ledger, Message, PrivatePostgres, Trial, kafka, payment, payments, postgres, postgres_18, trials, unique,
};

pub fn tests() -> Vec<Trial> {
    trials![a_consumer_that_may_only_add, a_consumer_that_may_only_add_on_postgres_18]
}

const LIMIT: Duration = Duration::from_secs(60);

/// What `postonce_consumer` writes once and nobody writes again.
const APPEND_ONLY: [&str; 6] = ["postings", "events", "conflicts", "batches", "rules", "claims"];

fn a_consumer_that_may_only_add() -> Result<()> {
    may_only_add(&postgres())
}

fn a_consumer_that_may_only_add_on_postgres_18() -> Result<()> {
    let Some(server) = postgres_18() else {
        eprintln!("skipped: there are no binaries of Postgres 18 for this machine");
        return Ok(());
    };
    may_only_add(&server)
}

fn may_only_add(server: &PrivatePostgres) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "roles")?, "roles", 2)?;
    let (consumer_role, reader_role) = (unique("consumer"), unique("reader"));
    flow.ledger.db.execute(&format!(
        "CREATE ROLE {consumer_role} LOGIN PASSWORD 'secret' IN ROLE postonce_consumer;
         CREATE ROLE {reader_role} LOGIN PASSWORD 'secret' IN ROLE postonce_reader"
    ))?;
    let place = flow.ledger.url.rsplit_once('@').context("no @ in the URL")?.1.to_owned();
    let login = |role: &str| format!("postgres://{role}:secret@{place}");

    // Everything that a consumer does: states that change, conflicts, poison, lives.
    for round in 0..2 {
        let consumer = flow.consume_through(&login(&consumer_role), &["--workers", "2"])?;
        flow.send(payments("roles", 50))?;
        flow.send([
            payment("stripe/roles/pi_0", "reversed", "2026-01-03T00:00:00Z", 0),
            payment("stripe/roles/pi_1", "succeeded", "2026-01-02T03:04:05.000001Z", 7),
            Message::new("no event"),
        ])?;
        flow.wait_done(LIMIT).with_context(|| format!("round {round}: {}", consumer.stderr()))?;
        consumer.finish()?;
        flow.check()?;
    }
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM events")?, 51);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT count(*) FROM conflicts")?, 1);
    assert_eq!(flow.ledger.db.one::<i64>("SELECT times_seen FROM quarantine")?, 2);

    let own = Db::new(&login(&consumer_role));
    let reader = Db::new(&login(&reader_role));
    let owner = &flow.ledger.db;
    for table in APPEND_ONLY {
        let column: String = owner.one(&format!(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum = 1"
        ))?;
        for statement in [
            format!("UPDATE {table} SET {column} = {column}"),
            format!("DELETE FROM {table}"),
            format!("TRUNCATE {table}"),
        ] {
            refused(&own, &statement, "permission denied")?;
            refused(&reader, &statement, "permission denied")?;
            // The owner has every right, and is stopped by the trigger; also where no row fits.
            refused(owner, &statement, "append-only")?;
        }
        refused(owner, &format!("DELETE FROM {table} WHERE false"), "append-only")?;
    }
    for statement in [
        "UPDATE resources SET path = path",
        "UPDATE streams SET first_offset = 0",
        "UPDATE quarantine SET value = NULL",
        "DELETE FROM balances",
        "DELETE FROM resources",
        "DELETE FROM quarantine",
        "TRUNCATE streams",
        "UPDATE accounts SET asset = 'USD'",
        "ALTER TABLE postings DISABLE TRIGGER ALL",
        "DROP TABLE postings",
        "CREATE TABLE postonce.mine ()",
    ] {
        refused(&own, statement, "")?;
        refused(&reader, statement, "")?;
    }
    refused(&reader, "INSERT INTO accounts VALUES (gen_random_uuid(), 'assets:x', 'EUR')", "permission denied")?;
    for view in
        ["entries", "account_balances", "trial_balance", "stream_positions", "quarantine_open", "incidents_open"]
    {
        ensure!(reader.one::<i64>(&format!("SELECT count(*) FROM {view}"))? > 0, "{view} is empty");
    }
    flow.check()
}

fn refused(db: &Db, statement: &str, why: &str) -> Result<()> {
    match db.execute(statement) {
        Ok(_) => bail!("{statement} was done"),
        Err(error) => {
            let told = format!("{error:#}");
            ensure!(told.contains(why), "{statement}: {told}");
            ensure!(!told.contains("does not exist"), "{told}");
            Ok(())
        }
    }
}
