//! `trace` shows every event of a resource, without an index of them and without reading
//! the table for them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_consumer::database::Database as Schema;
use postonce_consumer::read::trace::{ResourceTrace, trace};
use postonce_tests::{
    Db, Flow, Ledger, Message, PrivatePostgres, Trial, kafka, payment, start_postgres, start_postgres_18, trials,
};
use tokio::runtime::Builder;

use crate::verify::{fill, rows_read, verified};

const LIMIT: Duration = Duration::from_secs(90);

pub fn tests() -> Vec<Trial> {
    trials![
        every_event_is_shown_in_whatever_order_it_came,
        what_was_there_before_is_shown,
        a_trace_reads_its_own_events_only,
        a_trace_reads_its_own_events_only_on_postgres_18,
    ]
}

fn traced(url: &str, path: &str) -> Result<ResourceTrace> {
    let traces = Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut connection = Schema::new(url, "postonce")?.connect().await?;
        anyhow::Ok(trace(&mut connection, path, Some("payment")).await?)
    })?;
    traces.into_iter().next().with_context(|| format!("no payment {path}"))
}

/// Everything that the tables hold of a resource, by its place.
fn ensure_all_is_shown(ledger: &Ledger, path: &str) -> Result<()> {
    let held: Vec<(i32, i64)> = ledger.db.rows(&format!(
        "SELECT s.partition, e.message_offset
         FROM (SELECT stream, message_offset, resource_id FROM events
               UNION ALL SELECT stream, message_offset, resource_id FROM conflicts) e
         JOIN resources r USING (resource_id) JOIN streams s USING (stream)
         WHERE r.path = '{path}' AND r.kind = 'payment'"
    ))?;
    let resource = traced(&ledger.url, path)?;
    let shown: Vec<_> = resource.events.iter().filter_map(|event| Some((event.partition?, event.offset))).collect();
    ensure!(!held.is_empty() && shown.len() == held.len(), "{path}: {shown:?} of {held:?}");
    assert_eq!(BTreeSet::from_iter(shown), BTreeSet::from_iter(held), "{path}");
    assert_eq!(resource.events.iter().filter(|event| event.stands).count(), 1, "{resource:#?}");
    Ok(())
}

/// Each is brought in a batch of its own; those of two partitions by two workers.
fn every_event_is_shown_in_whatever_order_it_came() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("traced")?, "traced", 2)?;
    let consumer = flow.consume(&["--workers", "2", "--batch", "50"])?;
    flow.wait_claimed(2)?;
    let event = |path: &str, state: &str, day: u8, amount: i64, partition: i32| {
        payment(path, state, &format!("2026-01-{day:02}T00:00:00Z"), amount).partition(partition)
    };
    let mut sent = 0;
    let mut send = |messages: Vec<Message>| {
        sent += messages.len() as i64;
        flow.send(messages)?;
        flow.wait_offsets(sent, LIMIT)
    };
    for (nth, state) in ["created", "authorized", "succeeded"].into_iter().enumerate() {
        let (nth, late) = (nth as u8, ["succeeded", "created", "authorized"][nth]);
        let partition = i32::from(nth % 2);
        send(vec![
            event("r/in_order", state, nth + 1, 100, partition),
            event("r/superseded", late, [3, 1, 2][usize::from(nth)], 100, partition),
            event("r/one_time", state, 1, 100, partition),
            // Back in time each, by a greater rank.
            event("r/regressed", state, 9 - nth, 100, partition),
            // Away from a time and back to it, the last by a conflict's id.
            event("r/to_and_fro", state, [5, 7, 5][usize::from(nth)], 100, partition),
        ])?;
    }
    // Of either content the greater fingerprint stands, whichever it is.
    let contested: Vec<String> = (0..8).map(|n| format!("r/contested_{n}")).collect();
    for (amount, partition) in [(100, 0), (101, 1), (100, 1)] {
        send(contested.iter().map(|path| event(path, "succeeded", 1, amount, partition)).collect())?;
    }
    send(contested.iter().map(|path| event(path, "reversed", 2, 0, 0)).collect())?;
    send(["succeeded", "reversed"].map(|state| event("r/to_and_fro", state, 5, 70, 0)).into())?;
    // All of it in one batch, and of one resource in two of them at once.
    let together = ["authorized", "created", "succeeded", "failed"].map(|state| (state, 4));
    let both = together.iter().flat_map(|(state, day)| [0, 1].map(|p| event("r/together", state, *day, 100, p)));
    send(both.collect())?;
    consumer.finish()?;
    flow.check()?;
    for path in ["r/in_order", "r/superseded", "r/one_time", "r/regressed", "r/to_and_fro", "r/together"] {
        ensure_all_is_shown(&flow.ledger, path)?;
    }
    contested.iter().try_for_each(|path| ensure_all_is_shown(&flow.ledger, path))?;
    let stood: Vec<bool> = flow
        .ledger
        .db
        .rows::<(bool,)>("SELECT DISTINCT detail LIKE '%this one stands' FROM incidents WHERE code = 'conflict'")?
        .into_iter()
        .map(|(stood,)| stood)
        .collect();
    assert_eq!(stood.len(), 2, "a conflict has come to stand, and another has not: {stood:?}");
    ensure!(verified(&flow.ledger.url)?.findings == 0);
    Ok(())
}

/// A ledger of the release before the column: which event displaced which is not known any
/// more, and all are shown.
fn what_was_there_before_is_shown() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("linked")?, "linked", 2)?;
    fill(&kafka, &flow)?;
    // Back in time, by greater ranks.
    let consumer = flow.consume(&["--workers", "1"])?;
    let states = ["created", "authorized", "succeeded"].into_iter().zip([9, 8, 7]);
    flow.send(states.map(|(state, day)| payment("r/back", state, &format!("2026-01-{day:02}T00:00:00Z"), 100)))?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let db = &flow.ledger.db;
    let often: i64 = db.one("SELECT count(*) FROM resources WHERE revision > 2")?;
    let back: i64 = db.one("SELECT count(*) FROM events WHERE previous_at > updated_at")?;
    ensure!(often > 100 && back > 0, "{often} resources have changed more than twice, {back} went back in time");
    db.execute(
        "DROP INDEX events_superseded; ALTER TABLE events DROP COLUMN previous_at;
         CREATE INDEX events_resource ON events (resource_id); DELETE FROM _sqlx_migrations WHERE version = 5",
    )?;
    db.execute("VACUUM FULL events")?;
    let apart = "SELECT sum(abs(message_offset - before))::bigint
                 FROM (SELECT message_offset, lag(message_offset) OVER (PARTITION BY stream ORDER BY ctid) AS before FROM events) e";
    let before: i64 = db.one(apart)?;
    Builder::new_current_thread().enable_all().build()?.block_on(Schema::new(db.url(), "postonce")?.migrate())?;
    // The new rows in the order of the old ones: an offset is found by the pages where it
    // and its neighbours lie.
    let after: i64 = db.one(apart)?;
    ensure!(after < 3 * before, "neighbours were {before} offsets apart, and are {after}");
    flow.ledger.check()?;
    ensure!(verified(&flow.ledger.url)?.findings == 0);
    let refused = db.execute("UPDATE events SET previous_at = NULL").unwrap_err();
    ensure!(format!("{refused:#}").contains("append-only"), "{refused:#}");
    let paths: Vec<(String,)> =
        db.rows("SELECT path FROM resources WHERE kind = 'payment' AND revision > 1 LIMIT 50")?;
    paths.iter().try_for_each(|(path,)| ensure_all_is_shown(&flow.ledger, path))
}

fn a_trace_reads_its_own_events_only() -> Result<()> {
    reads_its_own_events_only(&start_postgres(&[("autovacuum", "off")])?)
}

fn a_trace_reads_its_own_events_only_on_postgres_18() -> Result<()> {
    let Some(server) = start_postgres_18()? else {
        eprintln!("skipped: there are no binaries of Postgres 18 for this machine");
        return Ok(());
    };
    let db = Db::new(&server.url("postgres"));
    db.execute("ALTER SYSTEM SET autovacuum = off")?;
    db.execute("SELECT pg_reload_conf()")?;
    reads_its_own_events_only(&server)
}

/// Three events for each of 30,000 payments, all of one time, and one that was superseded.
const ROWS: &str = r#"
INSERT INTO rules VALUES (1, '1970-01-01', sha256('r'), E'version 1\nkind payment\nstate payment.created rank 1\n'
    'state payment.authorized rank 2\nstate payment.succeeded rank 5\nstate payment.failed rank 4');
INSERT INTO streams (stream, cluster_id, topic, topic_id, partition, first_offset, next_offset, message_chain, batch_chain)
    VALUES (1, 'c', 'payments', 't', 0, 0, 0, sha256('m'), sha256('b'));
INSERT INTO resources SELECT substr(sha256(convert_to(E'postonce:resource:v1\npayment\nr/' || n, 'UTF8'))::text, 3, 32)::uuid, 'payment', 'r/' || n, 'succeeded', '2026-01-01Z', 3, 1, '{}'
    FROM generate_series(1, 30000) AS n;
INSERT INTO events
    SELECT '2026-01-01Z', sha256(convert_to(E'postonce:v1\npayment.' || s.state || E'\nr/' || n || E'\n2026-01-01T00:00:00.000000Z', 'UTF8')),
           resource_id, gen_random_uuid(), 1, 4 * n + nth, NULL, outcome::"char", s.state, NULL,
           CASE WHEN nth IN (1, 2) THEN timestamptz '2026-01-01Z' END
    FROM resources CROSS JOIN LATERAL (SELECT substr(path, 3)::bigint AS n) AS numbered,
         (VALUES (0, 'created', 'N'), (1, 'authorized', 'N'), (2, 'succeeded', 'N'), (3, 'failed', 'S')) AS s (nth, state, outcome)"#;

/// Statistics by which each event has a time of its own.
const MISLEADING: &str = "
SET session_replication_role = replica;
CREATE TEMP TABLE kept AS TABLE events;
TRUNCATE events;
INSERT INTO events SELECT updated_at + message_offset * interval '1 s', event_id, resource_id, fingerprint, stream,
                          message_offset, message_time, outcome, state, source, previous_at FROM kept;
ANALYZE events;
TRUNCATE events;
INSERT INTO events TABLE kept";

/// Whatever the planner knows of the tables, and however many events are of one time.
fn reads_its_own_events_only(server: &PrivatePostgres) -> Result<()> {
    let ledger = Ledger::fresh_in(server, "plans")?;
    let db = &ledger.db;
    db.execute(&format!("SET timezone = 'UTC'; {ROWS}"))?;
    let generic = "ALTER ROLE CURRENT_USER SET plan_cache_mode = force_generic_plan";
    for statistics in ["SELECT 1", generic, "ANALYZE", MISLEADING] {
        db.execute(statistics)?;
        db.reconnect();
        let before = rows_read(db)?;
        let resource = traced(&ledger.url, "r/777")?;
        assert_eq!(resource.events.len(), 4, "{resource:#?}");
        let after = rows_read(db)?;
        let read = |table: &str| after[table] - before[table];
        ensure!(read("events") <= 20 && read("resources") <= 10, "after {statistics}: {before:?} {after:?}");
    }
    Ok(())
}
