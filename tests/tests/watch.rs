//! What is watched: each panel and each alarm has data, asked of a real Prometheus that
//! scrapes real consumers, and of a real Postgres by the reader's role.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Db, Flow, Kafka, Ledger, Message, PostonceProcess, Prometheus, Said, Series, Trial, delete_before, free_port, get,
    kafka, payment, payments, repository, start_postgres, trials, unique, wait_until,
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(120);

pub fn tests() -> Vec<Trial> {
    trials![
        every_panel_and_every_alarm_has_data,
        a_statement_by_sql_is_what_the_postings_say,
        the_money_of_an_hour_is_the_sum_of_its_postings,
        a_version_that_is_no_json_is_shown_without_its_money,
    ]
}

/// A consumer whose address outlives it: what Prometheus calls an instance.
struct Watched {
    port: u16,
    process: PostonceProcess,
}

impl Watched {
    fn start(flow: &Flow, port: u16, more: &[&str]) -> Result<Self> {
        let env = [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", &flow.ledger.url)];
        let listen = format!("127.0.0.1:{port}");
        let own = ["consume", "--topic", &flow.topic, "--group", &flow.group, "--listen", &listen];
        Ok(Self { port, process: PostonceProcess::start(&[&own, more].concat(), &env)? })
    }

    fn wait_ready(&self, status: u16) -> Result<()> {
        wait_until(LIMIT, &format!("/readyz to say {status}"), || {
            Ok((get(self.port, "/readyz")?.0 == status).then_some(()))
        })
        .with_context(|| self.process.stderr())
    }

    fn finish(mut self) -> Result<()> {
        self.process.terminate()?;
        let status = self.process.wait(LIMIT)?;
        ensure!(status.success(), "after SIGTERM: {status}\n{}", self.process.stderr());
        Ok(())
    }
}

/// Two consumers go through everything that an operator may meet, and then every question
/// that the dashboards and the alarms ask must have had an answer.
fn every_panel_and_every_alarm_has_data() -> Result<()> {
    let (mut kafka, mut server) = (Kafka::start()?, start_postgres(&[])?);
    let mut flow = Flow::new(&kafka, Ledger::fresh_in(&server, "watched")?, "watched", 1)?;
    flow.topic = unique("payments");
    // A week, and a recovery window of a week: what is watched has limits here.
    kafka.create_topic(&flow.topic, 4, &[("retention.ms", "604800000")])?;
    let ports = [free_port()?, free_port()?];
    let prometheus = Prometheus::start(&ports)?;
    let first = Watched::start(&flow, ports[0], &[])?;
    let second = Watched::start(&flow, ports[1], &[])?;
    prometheus.wait("count(up == 1) == 2")?;
    first.wait_ready(200)?;

    every_outcome(&flow, &prometheus)?;
    postgres_stops(&flow, &prometheus, || server.stop_fast(), [&first, &second])?;
    server.start_again()?;
    flow.ledger.db.reconnect();
    flow.ledger.slow_down(0.0)?;
    first.wait_ready(200)?;
    second.wait_ready(200)?;
    flow.wait_done(LIMIT)?;
    kafka.stop()?;
    kafka.start_again()?;
    flow.send(payments("after_the_broker", 50))?;
    flow.wait_done(LIMIT)?;
    prometheus.wait("sum(postonce_worker_lives_total) > 4")?;
    second.finish()?;
    let second = Watched::start(&flow, ports[1], &[])?;
    second.wait_ready(200)?;
    Said::by(&flow, &["verify"])?.complaint(0, &[])?;
    prometheus.wait("postonce_verify_last_findings == 0")?;
    first.finish()?;
    second.finish()?;
    a_gap(&kafka, &flow, &prometheus, ports[0])?;

    answers_of_the_panels(&prometheus)?;
    every_expression_has_data(&prometheus)?;
    every_query_has_rows(&flow.ledger)?;
    flow.ledger.check()
}

/// What must have been seen to rise. A counter that is born at its first value has not risen,
/// and a partition that moves lets another process count from nothing.
const RISING: [&str; 4] = [
    "postonce_events_total{outcome=\"posted\"}",
    "postonce_events_total{outcome=\"duplicate\"}",
    "postonce_rejected_total{code=\"bad_json\"}",
    "postonce_posted_minor_units_total{kind=\"payment\"}",
];

/// All outcomes, again and again until each rise was seen.
fn every_outcome(flow: &Flow, prometheus: &Prometheus) -> Result<()> {
    let has_risen =
        |counter: &&str| Ok::<_, anyhow::Error>(!prometheus.history(&format!("rate({counter}[5s]) > 0"))?.is_empty());
    for round in 0.. {
        ensure!(round < 20, "no rise was seen of one of {RISING:?}");
        flow.send_load(2_000, 5 + round)?;
        flow.send((0..200).map(|n| Message::new(format!("poison {round} {n}")).key("poison")))?;
        let resource = format!("stripe/regressed/pi_{round}");
        flow.send([
            payment(&resource, "reversed", "2026-01-03T00:00:00Z", 100),
            payment(&resource, "succeeded", "2026-01-04T00:00:00Z", 100),
            payment(&resource, "reversed", "2026-01-03T00:00:00Z", 70),
        ])?;
        flow.wait_done(LIMIT)?;
        prometheus.wait(&format!("sum(postonce_events_total) >= {}", flow.end()?))?;
        let risen = RISING.iter().map(has_risen).collect::<Result<Vec<_>>>()?;
        // Twice at least: the conflicts and regressions of one round are too few.
        if round > 0 && risen.iter().all(|risen| *risen) {
            break;
        }
    }
    for outcome in ["posted", "noted", "duplicate", "superseded", "conflict", "rejected"] {
        prometheus.wait(&format!("sum(postonce_events_total{{outcome=\"{outcome}\"}}) > 0"))?;
    }
    // Asked of the ledger now and then.
    prometheus.wait("sum(postonce_quarantine_open) > 0 and sum(postonce_incidents_open{code=\"conflict\"}) > 0")
}

/// Under way, with messages that wait; the caller starts it again.
fn postgres_stops(
    flow: &Flow,
    prometheus: &Prometheus,
    stop: impl FnOnce() -> Result<()>,
    consumers: [&Watched; 2],
) -> Result<()> {
    // One batch is under way: nobody else has anything to roll back.
    flow.ledger.slow_down(15.0)?;
    flow.send(payments("while_postgres_is_away", 200))?;
    wait_until(LIMIT, "a batch under way", || {
        let sleeping: i64 = flow.ledger.db.one("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")?;
        Ok((sleeping > 0).then_some(()))
    })?;
    stop()?;
    for consumer in consumers {
        consumer.wait_ready(503)?;
    }
    prometheus.wait("sum(postonce_transaction_failures_total{reason=\"unavailable\"}) > 0")?;
    prometheus.wait("sum(postonce_workers_ready) == 0")?;
    prometheus.wait("max(postonce_oldest_unposted_seconds) > 2")
}

/// Retention takes messages that nobody has read. The consumer says so until it is told to go
/// on, and the alarm sounds.
fn a_gap(kafka: &Kafka, flow: &Flow, prometheus: &Prometheus, port: u16) -> Result<()> {
    let next: i64 = flow.ledger.db.one("SELECT next_offset FROM streams WHERE partition = 0")?;
    flow.send(payments("unread", 20).into_iter().map(|message| message.partition(0)))?;
    delete_before(kafka, &flow.topic, 0, next + 10)?;
    let mut stopped = Watched::start(flow, port, &["--stop-linger", "600"])?;
    prometheus.wait("max(postonce_stopped{reason=\"gap\"}) == 1")?;
    prometheus.wait("ALERTS{alertname=\"PostonceGap\", severity=\"page\", alertstate=\"firing\"}")?;
    stopped.process.kill()?;
    let range = format!("0:{next}-{}", next + 9);
    let accepting = Watched::start(flow, port, &["--accept-gap", &range, "--person", "ada"])?;
    flow.wait_done(LIMIT)?;
    accepting.wait_ready(200)?;
    prometheus.wait(&format!("postonce_next_offset{{partition=\"0\"}} == {}", next + 20))?;
    accepting.finish()
}

/// What each panel must have shown of that run: its title, the series that is meant, and
/// whether it was so.
type Shown = (&'static str, &'static str, fn(f64) -> bool);

const SHOWN: [Shown; 14] = [
    ("Messages by outcome", "posted", |rate| rate > 0.0),
    ("Messages by outcome", "duplicate", |rate| rate > 0.0),
    ("Money posted by kind and asset", "payment", |rate| rate > 0.0),
    ("Duplicates by distance", "", |rate| rate > 0.0),
    ("Refused by code", "bad_json", |rate| rate > 0.0),
    ("Quarantine open by code", "bad_json", |open| open >= 400.0),
    ("Incidents open by code", "conflict", |open| open >= 2.0),
    ("Incidents open by code", "regression", |open| open >= 2.0),
    ("Conflicts open", "", |open| open >= 2.0),
    // Postgres is stopped.
    ("Workers that can post", "", |workers| workers == 0.0),
    ("Lag by partition, in seconds", "", |age| age > 2.0),
    // The broker is restarted.
    ("Lives of workers", "", |lives| lives > 0.0),
    ("Stopped, waits for a person", "gap", |stopped| stopped == 1.0),
    ("Verify", "", |findings| findings == 0.0),
];

fn answers_of_the_panels(prometheus: &Prometheus) -> Result<()> {
    let panels: BTreeMap<String, Vec<Value>> = ["overview", "stream"]
        .into_iter()
        .map(|name| Ok(panels_of(&dashboard(name)?)))
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    for (title, label, holds) in SHOWN {
        let target = panels.get(title).and_then(|targets| targets.first()).with_context(|| format!("no {title}"))?;
        let expression = filled_in(target["expr"].as_str().context(title)?)?;
        let series = prometheus.history(&expression)?;
        let meant = |one: &Series| label.is_empty() || one.labels.to_string().contains(&format!("\"{label}\""));
        let mut values = series.iter().filter(|one| meant(one)).flat_map(|one| &one.values);
        ensure!(values.any(|value| holds(*value)), "{title} has not shown {label:?}: {expression}");
    }
    Ok(())
}

/// Panels, marks, alarms: each has had a number at some time of the run.
fn every_expression_has_data(prometheus: &Prometheus) -> Result<()> {
    let mut without = Vec::new();
    let mut asked = 0;
    for name in ["overview", "stream"] {
        let dashboard = dashboard(name)?;
        let marks = dashboard["annotations"]["list"].as_array().cloned().unwrap_or_default();
        let targets =
            panels_of(&dashboard).into_values().flatten().chain(marks.iter().map(|one| one["target"].clone()));
        for target in targets {
            let expression = filled_in(target["expr"].as_str().context("no expression")?)?;
            asked += 1;
            if !has_data(prometheus, &expression)? {
                without.push(format!("{name}: {expression}"));
            }
        }
    }
    for expression in rules()? {
        asked += 1;
        if has_data(prometheus, &expression)? {
            continue;
        }
        // Where an alarm is silent, that is its answer: then all that it looks at must be there.
        for selector in selectors(&expression) {
            if !has_data(prometheus, &selector)? && !has_data(prometheus, &of_any_value(&selector))? {
                without.push(format!("rules: {selector} of {expression}"));
            }
        }
    }
    ensure!(asked > 90, "{asked} expressions only");
    ensure!(without.is_empty(), "{} of {asked} have no data:\n{}", without.len(), without.join("\n"));
    Ok(())
}

fn has_data(prometheus: &Prometheus, expression: &str) -> Result<bool> {
    let series = prometheus.history(expression).with_context(|| expression.to_owned())?;
    Ok(series.iter().flat_map(|one| &one.values).any(|value| value.is_finite()))
}

/// Each query of the ledger's dashboard, by a login that has the reader's role and no other.
fn every_query_has_rows(ledger: &Ledger) -> Result<()> {
    let role = unique("grafana");
    ledger.db.execute(&format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'secret' IN ROLE postonce_reader;
         -- Of tables the panels must need none.
         DO $$ DECLARE one regclass; BEGIN
             FOR one IN SELECT oid FROM pg_class WHERE relnamespace = 'postonce'::regnamespace AND relkind = 'r' LOOP
                 EXECUTE format('REVOKE ALL ON %s FROM postonce_reader', one);
             END LOOP;
         END $$"
    ))?;
    let place = ledger.url.rsplit_once('@').context("no @ in the URL")?.1;
    let reader = Db::new(&format!("postgres://{role}:secret@{place}"));
    ensure!(reader.execute("SELECT FROM postonce.postings").is_err(), "the reader reads tables");
    let dashboard = dashboard("ledger")?;
    let variables = variables_of(&dashboard, &reader)?;
    let mut asked = 0;
    for (title, targets) in panels_of(&dashboard) {
        for target in targets {
            let sql = with_variables(target["rawSql"].as_str().context("no SQL")?, &variables)?;
            let rows: i64 = reader.one(&format!("SELECT count(*) FROM ({sql}) q")).with_context(|| title.clone())?;
            ensure!(rows > 0, "{title} has no row: {sql}");
            if target["format"] == "time_series" {
                reader.execute(&format!("SELECT time::timestamptz, metric::text, value::float8 FROM ({sql}) q"))?;
            }
            asked += 1;
        }
    }
    ensure!(asked >= 11, "{asked} queries only");
    Ok(())
}

/// As Grafana would fill them in: all assets, and the first account.
fn variables_of(dashboard: &Value, reader: &Db) -> Result<BTreeMap<String, String>> {
    let mut known = BTreeMap::from([
        ("$__timeFrom()".to_owned(), "'2000-01-01T00:00:00Z'".to_owned()),
        ("$__timeTo()".to_owned(), "'2100-01-01T00:00:00Z'".to_owned()),
    ]);
    for variable in dashboard["templating"]["list"].as_array().context("no variables")? {
        let (name, query) = (variable["name"].as_str().context("no name")?, variable["query"].as_str().unwrap_or(""));
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let value = match variable["type"].as_str() {
            Some("textbox") => quoted(query),
            Some("query") => {
                let values: Vec<(String,)> = reader.rows(&with_variables(query, &known)?)?;
                let taken = if variable["multi"] == true { values.len() } else { 1 };
                ensure!(!values.is_empty(), "variable {name} has no values");
                values.iter().take(taken).map(|(value,)| quoted(value)).collect::<Vec<_>>().join(",")
            }
            _ => continue,
        };
        known.insert(format!("${{{name}:sqlstring}}"), value);
    }
    Ok(known)
}

fn with_variables(sql: &str, known: &BTreeMap<String, String>) -> Result<String> {
    let sql = known.iter().fold(sql.to_owned(), |sql, (name, value)| sql.replace(name, value));
    ensure!(!sql.contains('$'), "a variable that nobody knows: {sql}");
    Ok(sql)
}

fn dashboard(name: &str) -> Result<Value> {
    let path = repository().join(format!("grafana/dashboards/{name}.json"));
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// The queries of each panel, by its title.
fn panels_of(dashboard: &Value) -> BTreeMap<String, Vec<Value>> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let asking =
        panels.filter_map(|panel| Some((panel["title"].as_str()?.to_owned(), panel["targets"].as_array()?.clone())));
    asking.collect()
}

/// As Grafana would fill them in: everything that is there. A rate needs two scrapes.
fn filled_in(expression: &str) -> Result<String> {
    let filled = ["job", "instance", "topic", "partition"]
        .iter()
        .fold(expression.replace("$__rate_interval", "5s"), |text, name| {
            text.replace(&format!("\"${name}\""), "\".+\"")
        });
    ensure!(!filled.replace("$1", "").contains('$'), "a variable that nobody knows: {filled}");
    Ok(filled)
}

/// The expressions of all rules.
fn rules() -> Result<Vec<String>> {
    let text = fs::read_to_string(repository().join("grafana/rules/postonce.yml"))?;
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let Some(expression) = line.trim_start().strip_prefix("expr: ") else { continue };
        let mut expression = expression.trim_start_matches('|').to_owned();
        let indent = |line: &str| line.len() - line.trim_start().len();
        while let Some(more) = lines.next_if(|next| indent(next) > indent(line)) {
            expression = expression + "\n" + more.trim_start();
        }
        found.push(expression);
    }
    ensure!(found.len() >= 27, "{} rules only", found.len());
    Ok(found)
}

/// The series that an expression looks at: `name` or `name{…}`.
fn selectors(expression: &str) -> Vec<String> {
    let name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        rest = &rest[start..];
        let end = rest.find(|c| !name(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word.starts_with("postonce") || word == "up" {
            let labels = if after.starts_with('{') { &after[..=after.find('}').unwrap_or(0)] } else { "" };
            rest = &after[labels.len()..];
            found.push(format!("{word}{labels}"));
        }
    }
    found
}

/// The same for any value of its labels: this run has not met every fault that has a name.
fn of_any_value(selector: &str) -> String {
    let matchers = selector.split_inclusive('"').enumerate();
    let any = |(nth, part): (usize, &str)| match nth % 2 {
        0 => part.replace("!~", "=~").replace("=\"", "=~\"").replace("=~~", "=~"),
        _ => ".+\"".to_owned(),
    };
    matchers.map(any).collect()
}

/// `account_statement` finds what stands in `postings`, page by page, and comes to the balance.
fn a_statement_by_sql_is_what_the_postings_say() -> Result<()> {
    let flow = posted("sql_statement")?;
    let db = &flow.ledger.db;
    let accounts: Vec<(String, String, String)> = db.rows(
        "SELECT path, asset, account_id::text FROM accounts JOIN balances USING (account_id)
         ORDER BY debits + credits DESC LIMIT 3",
    )?;
    for (path, asset, id) in accounts {
        let times: Vec<(String,)> = db.rows(&format!(
            "SELECT effective_at::text FROM postings WHERE '{id}' IN (debit, credit) ORDER BY random() LIMIT 3"
        ))?;
        for until in times.iter().map(|(time,)| time.as_str()).chain(["infinity"]) {
            for most in [7, 10_000] {
                let other: i64 = db.one(&format!(
                    "WITH lines AS (
                         SELECT effective_at, stream, message_offset, line,
                                CASE debit WHEN '{id}' THEN amount ELSE -amount END::numeric AS amount
                         FROM postings WHERE '{id}' IN (debit, credit)
                     ), expected AS (
                         SELECT amount, sum(amount) OVER (ORDER BY effective_at, stream, message_offset, line) AS balance,
                                '/' || message_offset || '/' || line AS place
                         FROM lines WHERE effective_at < '{until}'
                         ORDER BY effective_at DESC, stream DESC, message_offset DESC, line DESC LIMIT {most}
                     ), found AS (
                         SELECT amount, balance, substring(posting FROM '/[0-9]+/[0-9]+$') AS place
                         FROM account_statement('{path}', '{asset}', '{until}', {most})
                     )
                     SELECT count(*) FROM ((TABLE expected EXCEPT ALL TABLE found)
                                           UNION ALL (TABLE found EXCEPT ALL TABLE expected)) d"
                ))?;
                ensure!(other == 0, "{path} {asset} before {until} by {most}: {other} lines are others");
            }
        }
    }
    let nothing: i64 = db.one("SELECT count(*) FROM account_statement('assets:nobody', 'EUR')")?;
    ensure!(nothing == 0, "{nothing} lines of an account that is not there");
    Ok(())
}

/// Of all, and of the newest part, in which the oldest hour says that it is cut.
fn the_money_of_an_hour_is_the_sum_of_its_postings() -> Result<()> {
    let flow = posted("hours")?;
    let db = &flow.ledger.db;
    let sums: (i64, i64) = db.rows("SELECT count(*), sum(amount)::bigint FROM postings")?.remove(0);
    let of = |most: i64| -> Result<(i64, i64, bool)> {
        let sql = format!(
            "SELECT sum(postings)::bigint, sum(amount)::bigint, bool_and(whole)
             FROM posted_by_hour('-infinity', 'infinity', {most}) WHERE kind IS NOT NULL AND asset IS NOT NULL"
        );
        Ok(db.rows(&sql)?.remove(0))
    };
    ensure!(of(1_000_000)? == (sums.0, sums.1, true), "{:?} and not {sums:?}", of(1_000_000)?);
    let (postings, _, whole) = of(500)?;
    ensure!(0 < postings && postings < sums.0 && !whole, "{postings} of {} postings, whole: {whole}", sums.0);
    let conflicting: i64 = db.one(
        "SELECT count(*) FROM conflicts c JOIN postings p ON (p.stream, p.message_offset) = (c.stream, c.message_offset)",
    )?;
    ensure!(conflicting > 0, "no conflict has posted");
    Ok(())
}

/// Anybody's bytes may be there: the panel must come through with all of them.
fn a_version_that_is_no_json_is_shown_without_its_money() -> Result<()> {
    let flow = posted("versions_shown")?;
    let db = &flow.ledger.db;
    let shown: (i64, i64, i64) = db
        .rows(
            "SELECT count(*), count(*) FILTER (WHERE second_says LIKE '%currency %'),
                    count(*) FILTER (WHERE first_place IS NOT NULL AND second_place IS NOT NULL AND event_type IS NOT NULL)
             FROM conflict_versions",
        )?
        .remove(0);
    let conflicts: i64 = db.one("SELECT count(*) FROM conflicts")?;
    ensure!(shown == (conflicts, conflicts, conflicts), "{shown:?} of {conflicts}");
    for odd in [r"'\xff'", r#"'\"'"#, "''", r"'[1]'", r#"'{"data": 7}'"#, r#"'{"data":{"currency":"\u0000"}}'"#] {
        db.one::<Option<String>>(&format!("SELECT money_of(convert_to({odd}, 'UTF8'))"))
            .or_else(|_| db.one::<Option<String>>(&format!("SELECT money_of({odd}::bytea)")))?;
    }
    ensure!(db.one::<Option<String>>(r"SELECT money_of('\xff00'::bytea)")?.is_none());
    let says: Option<String> = db.one(r#"SELECT money_of('{"data":{"amount":5,"currency":"EUR","name":"Ada"}}')"#)?;
    ensure!(says.as_deref() == Some("amount 5, currency EUR"), "{says:?}");
    Ok(())
}

fn posted(label: &str) -> Result<Flow> {
    let flow = Flow::new(&kafka(), Ledger::fresh(label)?, label, 2)?;
    flow.send_load(4_000, 5)?;
    let consumer = flow.consume(&["--workers", "2", "--batch", "200"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    Ok(flow)
}
