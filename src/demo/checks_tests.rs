//! Each check fails where it should: on a ledger of one payment, tampered with in
//! every way that the checks are there to see.

use super::*;
use crate::private_postgres::{PrivatePostgres, StartOptions};
use postonce_consumer::database::Database;
use postonce_producer::generate::Poison;
use postonce_schema::{Account, Facts, Position};

const FACTS: &str = r#"{"provider":"stripe","merchant":"m_1","currency":"EUR","amount":1000,"fee":30}"#;

/// One payment, a copy of it, and a poison message that came twice.
const ROWS: &str = "
INSERT INTO streams (stream, cluster_id, topic, topic_id, partition, first_offset, next_offset, message_chain, batch_chain)
VALUES (7, 'c', 'payments', 'i', 0, 0, 4, sha256(''), sha256(''));
INSERT INTO batches (stream, seq, from_offset, next_offset, outcomes, message_chain, previous_hash, hash)
VALUES (7, 1, 0, 3, 'PDR', sha256(''), sha256(''), sha256('')), (7, 2, 3, 4, 'R', sha256(''), sha256(''), sha256(''));
INSERT INTO events (updated_at, event_id, resource_id, fingerprint, stream, message_offset, outcome, state)
VALUES ('2024-01-01Z', sha256('e'), gen_random_uuid(), gen_random_uuid(), 7, 0, 'P', 'succeeded');
INSERT INTO quarantine (message_hash, code, place, reason, headers, first_stream, first_offset, last_stream, last_offset, times_seen)
VALUES (sha256('q'), 'empty', '', '', '', 7, 2, 7, 3, 2)";

/// What is done to the ledger, and the beginnings of the checks that must see it.
const TAMPERED: &[(&str, &[&str])] = &[
    ("SELECT 1", &[]),
    ("UPDATE balances SET debits = debits + 1 WHERE credits = 0", &["balances = sum of the pos", "trial"]),
    ("UPDATE balances SET debits = debits + 1, credits = credits + 1", &["balances = sum of the postings"]),
    ("DELETE FROM balances WHERE credits = 0", &["balances = sum of the pos", "trial"]),
    ("DELETE FROM balances", &["balances = sum of the pos", "trial"]),
    ("DELETE FROM accounts", &["balances = sum of the postings", "trial"]),
    ("UPDATE postings SET amount = amount + 1 WHERE line = 0", &["balances = sum of the postings"]),
    ("DELETE FROM postings", &["balances = sum of the postings"]),
    ("UPDATE resources SET facts = replace(facts::text, '1000', '1001')::json", &["balances = sum of the positions"]),
    ("UPDATE resources SET state = 'reversed'", &["balances = sum of the positions"]),
    ("DELETE FROM resources", &["balances = sum of the positions"]),
    ("DELETE FROM events", &["each posting belongs"]),
    ("UPDATE events SET outcome = 'N'", &["each posting belongs"]),
    ("DELETE FROM quarantine", &["every poison"]),
    ("UPDATE quarantine SET times_seen = 1", &["every poison"]),
    ("UPDATE quarantine SET code = 'too_large'", &["every poison"]),
    ("DELETE FROM batches WHERE seq = 1", &["each of 4 offsets"]),
    ("DELETE FROM batches WHERE seq = 2", &["each of 4 offsets"]),
    ("UPDATE batches SET outcomes = 'PD' WHERE seq = 1", &["each of 4 offsets"]),
    ("UPDATE batches SET outcomes = 'PD.' WHERE seq = 1", &["each of 4 offsets"]),
    ("UPDATE batches SET outcomes = 'PDx' WHERE seq = 1", &["each of 4 offsets"]),
    ("UPDATE batches SET from_offset = 2, outcomes = 'RR' WHERE seq = 2", &["each of 4 offsets"]),
    ("UPDATE streams SET next_offset = 3", &["each of 4 offsets"]),
];

#[test]
fn a_ledger_that_was_tampered_with_is_seen() {
    let server = PrivatePostgres::start(StartOptions::default()).unwrap();
    server.create_database("checks").unwrap();
    let database = Database::new(&server.url("checks"), "postonce").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        database.migrate().await.unwrap();
        let mut connection = database.connect().await.unwrap();
        fill(&mut connection).await;
        for (tampering, expected) in TAMPERED {
            // As a replica Postgres lets the append-only triggers rest.
            execute(&mut connection, &format!("BEGIN; SET LOCAL session_replication_role = replica; {tampering}"))
                .await;
            let failed = failed_checks(&mut connection).await;
            execute(&mut connection, "ROLLBACK").await;
            let unseen: Vec<_> =
                expected.iter().filter(|name| !failed.iter().any(|what| what.starts_with(**name))).collect();
            let unexpected: Vec<_> =
                failed.iter().filter(|what| !expected.iter().any(|name| what.starts_with(name))).collect();
            assert!(unseen.is_empty() && unexpected.is_empty(), "{tampering}: failed {failed:?}");
        }
    });
}

async fn failed_checks(connection: &mut PgConnection) -> Vec<String> {
    let log = [Log { partition: 0, start: 0, end: 4 }];
    let sent = Summary { poison: 1, poison_by_class: [(Poison::Tombstone, 1)].into(), ..Summary::default() };
    let checks = of_the_ledger(connection, &log, &sent).await.unwrap();
    checks.into_iter().filter(|check| !check.holds()).map(|check| check.what).collect()
}

async fn fill(connection: &mut PgConnection) {
    execute(connection, ROWS).await;
    let rules = Rules::parse(POSITIONS_TOML).unwrap();
    let kind = rules.version(1).unwrap().kind("payment").unwrap();
    let facts = Facts::from_json(kind, FACTS).unwrap();
    let postings = Position::of(kind.state("succeeded").unwrap(), &facts).minus(Position::default());
    assert_eq!(postings.len(), 2);
    execute(
        connection,
        &format!(
            "INSERT INTO resources (resource_id, kind, path, state, updated_at, revision, rules_version, facts)
             VALUES (gen_random_uuid(), 'payment', 'p', 'succeeded', '2024-01-01Z', 1, 1, '{FACTS}')"
        ),
    )
    .await;
    for (line, posting) in (0..).zip(&postings) {
        let (debit, credit) = (account(connection, &posting.debit).await, account(connection, &posting.credit).await);
        let amount = posting.amount;
        execute(
            connection,
            &format!(
                "INSERT INTO postings VALUES (7, 0, {line}, '{debit}', '{credit}', {amount}, '2024-01-01Z');
                 INSERT INTO balances VALUES ('{debit}', {amount}, 0), ('{credit}', 0, {amount})
                 ON CONFLICT (account_id) DO UPDATE SET debits = balances.debits + excluded.debits,
                                                        credits = balances.credits + excluded.credits"
            ),
        )
        .await;
    }
}

async fn account(connection: &mut PgConnection, account: &Account) -> Uuid {
    let id = Uuid::from_bytes(*account.id.as_bytes());
    let (path, asset) = (account.path.as_str(), account.asset);
    execute(connection, &format!("INSERT INTO accounts VALUES ('{id}', '{path}', '{asset}') ON CONFLICT DO NOTHING"))
        .await;
    id
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(connection).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

fn books() -> Books {
    let zero = Counts::default();
    Books {
        outcomes: zero,
        events: 1,
        postings: 2,
        conflicts: 0,
        incidents: 0,
        balances: "b".into(),
        net: "n".into(),
        resources: "r".into(),
    }
}

#[test]
fn a_second_pass_that_changes_something_is_seen() {
    let counted = Counts { duplicate: 5, ..Counts::default() };
    assert!(second_pass_changed_nothing(&books(), &Books { outcomes: counted, ..books() }).holds());
    let changed = [
        Books { events: 2, ..books() },
        Books { postings: 3, ..books() },
        Books { conflicts: 1, ..books() },
        Books { incidents: 1, ..books() },
        Books { balances: "c".into(), ..books() },
        Books { resources: "s".into(), ..books() },
    ];
    for after in changed {
        assert!(!second_pass_changed_nothing(&books(), &after).holds(), "{after:?}");
    }
}

#[test]
fn outcomes_are_compared_with_what_was_sent() {
    let sent = Summary { unique: 6, duplicates: 2, conflicts: 1, poison: 3, ..Summary::default() };
    let first =
        Counts { posted: 3, noted: 2, superseded: 1, duplicate: 2, conflict: 1, rejected: 3, ..Counts::default() };
    let second = Counts { duplicate: 9, rejected: 3, ..Counts::default() };
    let held = |first, second| {
        let passes = [(first, Expected::first_pass(&sent)), (second, Expected::second_pass(&sent))];
        outcomes(&passes).iter().map(Check::holds).collect::<Vec<_>>()
    };
    assert_eq!(held(first, second), [true, true]);
    assert_eq!(held(Counts { posted: 2, ..first }, second), [false, true]);
    assert_eq!(held(Counts { conflict: 2, rejected: 2, ..first }, second), [false, true]);
    assert_eq!(held(first, Counts { posted: 1, duplicate: 8, ..second }), [true, false]);
    assert_eq!(held(first, Counts { rejected: 2, ..second }), [true, false]);
}

#[test]
fn crash_memory_and_a_trimmed_log_are_judged() {
    assert!(crash_in_the_middle(5, 10).holds());
    assert!(!crash_in_the_middle(0, 10).holds());
    assert!(!crash_in_the_middle(10, 10).holds());
    assert!(memory(None).is_none());
    assert!(memory(Some(299 * 1024)).unwrap().holds());
    assert!(!memory(Some(300 * 1024)).unwrap().holds());
    let log = |start| [Log { partition: 3, start, end: 9 }];
    assert!(nothing_trimmed(&log(0)).holds());
    assert!(!nothing_trimmed(&log(1)).holds());
}
