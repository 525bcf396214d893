//! Who may do what with the books: every right that docs/security.md names is tried, and
//! every other one, on every table, column, view and function that the catalogue has.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use postonce_tests::{
    Db, Flow, Ledger, Message, PostonceProcess, PrivatePostgres, Trial, kafka, payment, payments, postgres,
    postgres_18, trials,
};

pub fn tests() -> Vec<Trial> {
    trials![
        a_consumer_that_may_only_add,
        a_consumer_that_may_only_add_on_postgres_18,
        every_right_and_no_other,
        every_command_as_the_role_of_the_manual
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

const ROLES: [&str; 6] = [
    "postonce_consumer",
    "postonce_operator",
    "postonce_auditor",
    "postonce_reader",
    "postonce_payload_reader",
    "postonce_gateway",
];

/// What nobody changes, whoever he is: the trigger stops the owner, too.
const APPEND_ONLY: [&str; 7] = ["postings", "events", "conflicts", "batches", "rules", "claims", "actions"];

/// Every table, and which of its columns the consumer may set to something else. A table
/// that is not here is forgotten, and fails the test.
const TABLES: [(&str, &[&str]); 18] = [
    ("_sqlx_migrations", &[]),
    ("account_postings", &[]),
    ("accounts", &[]),
    ("actions", &[]),
    ("balances", &["debits", "credits"]),
    ("batches", &[]),
    ("claims", &[]),
    ("conflicts", &[]),
    ("events", &[]),
    ("incidents", &[]),
    ("postings", &[]),
    (
        "quarantine",
        &["last_stream", "last_offset", "times_seen", "last_seen", "closed_at", "closed_stream", "closed_offset"],
    ),
    ("resources", &["state", "updated_at", "revision", "rules_version", "facts"]),
    ("rules", &[]),
    (
        "streams",
        &[
            "next_offset",
            "epoch",
            "claim",
            "backend_pid",
            "backend_start",
            "batch_seq",
            "message_chain",
            "batch_chain",
            "leader_epoch",
            "leader_epoch_offset",
        ],
    ),
    ("verifications", &[]),
    ("verified_balances", &[]),
    ("verified_streams", &[]),
];

/// Written by the runs of `verify` and by `migrate`, never by the consumer.
const NOT_THE_CONSUMERS: [&str; 4] = ["_sqlx_migrations", "verifications", "verified_balances", "verified_streams"];

/// All columns of bytes that are a hash and no payload.
const HASHES: [&str; 15] = [
    "_sqlx_migrations.checksum",
    "actions.message_hash",
    "batches.hash",
    "batches.message_chain",
    "batches.outcomes",
    "batches.previous_hash",
    "conflicts.event_id",
    "events.event_id",
    "incidents.event_id",
    "quarantine.message_hash",
    "rules.hash",
    "streams.batch_chain",
    "streams.message_chain",
    "verified_streams.batch_chain",
    "verified_streams.message_chain",
];

/// The database's own words: whoever could write them could pass for another.
const OF_THE_DATABASE: [&str; 2] = ["actions.role", "actions.acted_at"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Right {
    Select,
    Insert,
    Update,
    Delete,
    Truncate,
    Alter,
    Drop,
}

/// A column of a table or view, as the catalogue has it.
struct Column {
    relation: String,
    name: String,
    type_name: String,
    is_view: bool,
}

impl Column {
    fn is_payload(&self) -> bool {
        self.type_name == "bytea" && !HASHES.contains(&format!("{}.{}", self.relation, self.name).as_str())
    }
}

/// What docs/security.md promises.
fn may(role: &str, right: Right, column: &Column) -> bool {
    use Right::{Alter, Delete, Drop, Insert, Select, Truncate, Update};
    let (table, name) = (column.relation.as_str(), column.name.as_str());
    let of_the_database = OF_THE_DATABASE.contains(&format!("{table}.{name}").as_str());
    match (role, right) {
        (_, Truncate | Alter | Drop) => false,
        ("postonce_gateway", _) => false,
        ("postonce_payload_reader", Select) => ["quarantine", "conflicts", "quarantine_open"].contains(&table),
        ("postonce_payload_reader", _) => false,
        ("postonce_reader", Select) => column.is_view && !column.is_payload(),
        ("postonce_auditor", Select) => !column.is_payload(),
        ("postonce_reader" | "postonce_auditor", _) => false,
        ("postonce_operator", Select) => true,
        (_, Insert | Update | Delete) if column.is_view => false,
        ("postonce_operator", Insert) => match table {
            "actions" => !of_the_database,
            _ => ["verifications", "verified_streams", "verified_balances"].contains(&table),
        },
        ("postonce_operator", Update) => {
            table == "verified_balances" || (["quarantine", "incidents"].contains(&table) && name == "closed_at")
        }
        ("postonce_operator", Delete) => table == "verified_balances",
        ("postonce_consumer", Select) => !column.is_view && !column.is_payload(),
        ("postonce_consumer", Insert) => !NOT_THE_CONSUMERS.contains(&table) && !of_the_database,
        ("postonce_consumer", Update) => TABLES.iter().any(|(one, set)| *one == table && set.contains(&name)),
        _ => false,
    }
}

/// A statement that asks for this right alone and touches no row.
fn statement(right: Right, column: &Column) -> String {
    let Column { relation, name, type_name, is_view } = column;
    match right {
        Right::Select => format!("SELECT {name} FROM {relation} LIMIT 0"),
        Right::Insert => format!("INSERT INTO {relation} ({name}) SELECT NULL::{type_name} WHERE false"),
        Right::Update => format!("UPDATE {relation} SET {name} = NULL WHERE false"),
        Right::Delete => format!("DELETE FROM {relation} WHERE false"),
        Right::Truncate => format!("TRUNCATE {relation}"),
        Right::Alter if *is_view => format!("ALTER VIEW {relation} RENAME {name} TO another"),
        Right::Alter => format!("ALTER TABLE {relation} DISABLE TRIGGER ALL"),
        Right::Drop if *is_view => format!("DROP VIEW {relation} CASCADE"),
        Right::Drop => format!("DROP TABLE {relation} CASCADE"),
    }
}

fn every_right_and_no_other() -> Result<()> {
    let ledger = Ledger::fresh("rights")?;
    let columns = columns(&ledger.db)?;
    check_known(&columns)?;
    let (mut tried, mut wrong) = (0, Vec::new());
    for role in ROLES {
        let db = Db::new(&ledger.login(&[role])?);
        for column in &columns {
            use Right::{Alter, Delete, Drop, Insert, Select, Truncate, Update};
            for right in [Select, Insert, Update, Delete, Truncate, Alter, Drop] {
                let (sql, expected) = (statement(right, column), may(role, right, column));
                let told = db.execute(&sql).err().map(|error| format!("{error:#}"));
                let right_so = match &told {
                    None => expected,
                    // A view of several tables is refused before the rights are looked at.
                    Some(told) => !expected && is_refusal(told, column),
                };
                tried += 1;
                if !right_so {
                    wrong.push(format!("{role}: {sql}: {}", told.unwrap_or_else(|| "was done".to_owned())));
                }
            }
        }
        for call in calls(&ledger.db)? {
            // A function that reads for whoever may not, would be a hole in all of this.
            if db.execute(&call.sql).is_ok() != (call.for_readers && READERS.contains(&role)) {
                wrong.push(format!("{role}: {}", call.sql));
            }
        }
        let made = ["CREATE TABLE postonce.mine ()", "CREATE FUNCTION postonce.mine() RETURNS int RETURN 1"];
        for sql in made.into_iter().chain(["DROP SCHEMA postonce CASCADE", "SET ROLE postgres"]) {
            if db.execute(sql).is_ok() {
                wrong.push(format!("{role}: {sql} was done"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    ensure!(tried > 5_000, "only {tried} statements were tried");
    append_only_for_the_owner(&ledger.db)
}

/// Those for whom the functions of the views are.
const READERS: [&str; 3] = ["postonce_reader", "postonce_auditor", "postonce_operator"];

fn is_refusal(told: &str, column: &Column) -> bool {
    let rule = ["cannot insert into", "cannot update", "cannot delete from", "is not a table"];
    let denied = ["permission denied", "must be owner"].iter().any(|words| told.contains(words));
    denied || (column.is_view && rule.iter().any(|words| told.contains(words)))
}

/// What is new must be judged by a person: here, and in docs/security.md.
fn check_known(columns: &[Column]) -> Result<()> {
    let tables: BTreeSet<&str> = columns.iter().filter(|c| !c.is_view).map(|c| c.relation.as_str()).collect();
    let known: BTreeSet<&str> = TABLES.iter().map(|(table, _)| *table).collect();
    ensure!(tables == known, "the ledger has the tables {tables:?}; this test knows {known:?}");
    let payloads: Vec<String> = columns
        .iter()
        .filter(|column| column.is_payload() && !column.is_view)
        .map(|column| format!("{}.{}", column.relation, column.name))
        .collect();
    let expected = ["conflicts", "quarantine"].map(|table| ["headers", "key", "value"].map(|c| format!("{table}.{c}")));
    ensure!(payloads == expected.as_flattened(), "a new column of bytes is no hash: {payloads:?}");
    Ok(())
}

fn columns(db: &Db) -> Result<Vec<Column>> {
    let rows: Vec<(String, String, String, bool)> = db.rows(
        "SELECT c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), c.relkind = 'v'
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
         ORDER BY 1, 2",
    )?;
    let column = |(relation, name, type_name, is_view)| Column { relation, name, type_name, is_view };
    Ok(rows.into_iter().map(column).collect())
}

struct Call {
    sql: String,
    for_readers: bool,
}

/// Every function and procedure of the schema, called with nulls.
fn calls(db: &Db) -> Result<Vec<Call>> {
    let rows: Vec<(String, String, String, bool)> = db.rows(
        "SELECT proname::text, prokind::text,
                coalesce((SELECT string_agg('NULL::' || format_type(t, NULL), ', ') FROM unnest(proargtypes) AS t), ''),
                prorettype = 'trigger'::regtype
         FROM pg_proc WHERE pronamespace = current_schema()::regnamespace",
    )?;
    ensure!(rows.len() >= 2, "the schema has lost its functions");
    let call = |(name, kind, nulls, is_trigger): (String, String, String, bool)| {
        let verb = if kind == "p" { "CALL" } else { "SELECT FROM" };
        Call { sql: format!("{verb} {name}({nulls})"), for_readers: kind == "f" && !is_trigger }
    };
    Ok(rows.into_iter().map(call).collect())
}

/// The owner has every right, and is stopped by the trigger; also where no row fits.
fn append_only_for_the_owner(owner: &Db) -> Result<()> {
    for table in APPEND_ONLY {
        let column: String = owner.one(&format!(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum = 1"
        ))?;
        for statement in [
            format!("UPDATE {table} SET {column} = {column}"),
            format!("DELETE FROM {table}"),
            format!("DELETE FROM {table} WHERE false"),
            format!("TRUNCATE {table}"),
        ] {
            match owner.execute(&statement) {
                Ok(_) => bail!("{statement} was done"),
                Err(error) => ensure!(format!("{error:#}").contains("append-only"), "{statement}: {error:#}"),
            }
        }
    }
    Ok(())
}

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

/// Everything that a consumer does, with the rights of `postonce_consumer` alone: states
/// that change, conflicts, poison, lives, a copy that closes what was refused.
fn may_only_add(server: &PrivatePostgres) -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(server, "roles")?, "roles", 2)?;
    let url = flow.ledger.login(&["postonce_consumer"])?;
    for round in 0..2 {
        let consumer = flow.consume_through(&url, &["--workers", "2"])?;
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
    let db = &flow.ledger.db;
    assert_eq!(db.one::<i64>("SELECT count(*) FROM events")?, 51);
    assert_eq!(db.one::<i64>("SELECT count(*) FROM conflicts")?, 1);
    assert_eq!(db.one::<i64>("SELECT times_seen FROM quarantine")?, 2);
    let reader = Db::new(&flow.ledger.login(&["postonce_reader"])?);
    for view in
        ["entries", "account_balances", "trial_balance", "stream_positions", "quarantine_open", "incidents_open"]
    {
        ensure!(reader.one::<i64>(&format!("SELECT count(*) FROM {view}"))? > 0, "{view} is empty");
    }
    // A payload is for those who were given it, whatever else they may read.
    let both = Db::new(&flow.ledger.login(&["postonce_reader", "postonce_payload_reader"])?);
    assert_eq!(both.one::<Vec<u8>>("SELECT value FROM quarantine_open")?, b"no event");
    both.execute("SELECT * FROM quarantine_open")?;
    Ok(())
}

/// A command, and the least that its login needs.
struct Needs<'a> {
    args: &'a [&'a str],
    roles: &'a [&'a str],
    /// Roles that are not enough.
    less: &'a [&'a str],
}

/// The table "Which command needs which role" of docs/security.md.
fn every_command_as_the_role_of_the_manual() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("commands")?, "commands", 1)?;
    let time = "2026-01-02T00:00:00Z";
    flow.send([
        Message::new("no json").key("a"),
        Message::new("nor this").key("b"),
        payment("stripe/a/1", "succeeded", time, 100),
        payment("stripe/a/1", "succeeded", time, 250),
    ])?;
    let consumer = flow.consume_through(&flow.ledger.login(&["postonce_consumer"])?, &[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let id = |key: &str| -> Result<String> {
        flow.ledger.db.one(&format!("SELECT encode(message_hash, 'hex') FROM quarantine WHERE key = '{key}'"))
    };
    let (a, b, incident) = (id("a")?, id("b")?, format!("{}/0/3", flow.topic));
    let (reader, auditor): (&[&str], &[&str]) = (&["postonce_reader"], &["postonce_auditor"]);
    let (sees_bytes, operator) = (&["postonce_auditor", "postonce_payload_reader"], &["postonce_operator"]);
    let reads = |args| Needs { args, roles: auditor, less: reader };
    let shows = |args| Needs { args, roles: sees_bytes, less: auditor };
    let decides = |args| Needs { args, roles: operator, less: sees_bytes };
    for needs in [
        reads(&["status"]),
        reads(&["status", "--brokers", flow.bootstrap()]),
        reads(&["balances"]),
        reads(&["balances", "liabilities:", "--as-of", "2026-02-01"]),
        reads(&["statement", "assets:psp:stripe"]),
        reads(&["trace", "stripe/a/1"]),
        reads(&["checkpoint"]),
        reads(&["export", "--format", "hledger"]),
        reads(&["export", "--format", "beancount"]),
        reads(&["export", "--format", "csv", "--account", "assets:"]),
        reads(&["quarantine", "list", "--all-states"]),
        reads(&["incidents", "list", "--all-states"]),
        reads(&["replay"]),
        shows(&["verify"]),
        shows(&["verify", "--deep"]),
        shows(&["quarantine", "show", &a]),
        shows(&["incidents", "show", &incident]),
        decides(&["quarantine", "retry", &a]),
        decides(&["quarantine", "dismiss", &b, "--why", "x"]),
        decides(&["incidents", "close", &incident, "--why", "x"]),
        Needs { args: &["replay", "--execute"], roles: &["postonce_consumer"], less: operator },
    ] {
        let Needs { args, roles, less } = needs;
        let (code, told) = run(&flow, &flow.ledger.login(less)?, args)?;
        ensure!(code == 1 && told.contains("permission denied"), "{args:?} as {less:?}: {code}\n{told}");
        ensure!(told.contains("docs/security.md"), "{args:?} does not say which role it needs: {told}");
        let (code, told) = run(&flow, &flow.ledger.login(roles)?, args)?;
        ensure!(code == 0, "{args:?} as {roles:?}: {code}\n{told}");
    }
    Ok(())
}

fn run(flow: &Flow, url: &str, args: &[&str]) -> Result<(i32, String)> {
    let env = [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", url), ("POSTONCE_TOPIC", &flow.topic)];
    let mut process = PostonceProcess::start(args, &env)?;
    let code = process.wait(LIMIT)?.code().context("ended by a signal")?;
    Ok((code, process.stderr()))
}
