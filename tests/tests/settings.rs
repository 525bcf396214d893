//! Settings from a file, from the environment and from flags; and what must never be told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Database, Flow, Ledger, Message, PostonceProcess, Trial, kafka, payments, trials, unique, wait_until,
};
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    trials![
        a_flag_wins_over_the_environment_over_the_file_over_the_default,
        what_is_wrong_with_the_file_is_told_before_anything_starts,
        config_check_asks_kafka_and_postgres,
        a_secret_may_stand_in_a_file_of_its_own,
        no_password_is_ever_told,
        each_step_of_a_consumer_is_one_line_and_repeats_are_counted,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// Arguments, variables, and the group that they come to.
type Case<'c> = (&'c [&'c str], &'c [(&'c str, &'c str)], &'c str);

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let path: PathBuf = self.0.path().join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    }
}

fn run(args: &[&str], env: &[(&str, &str)]) -> Result<Output> {
    Ok(PostonceProcess::command(args, env)?.output()?)
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

/// The lines of a JSON log with this message.
fn lines(process: &PostonceProcess, message: &str) -> Vec<Value> {
    let lines = process.stderr();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["message"] == message).collect()
}

fn a_flag_wins_over_the_environment_over_the_file_over_the_default() -> Result<()> {
    let flow = Flow::new(&kafka(), Ledger::fresh("settings")?, "settings", 1)?;
    let (files, of_file) = (Files::new()?, unique("file"));
    let needed =
        format!("brokers = '{}'\ntopic = '{}'\ndatabase-url = '{}'\n", flow.bootstrap(), flow.topic, flow.ledger.url);
    let without = files.write("without.toml", &needed)?;
    let with = files.write("postonce.toml", &format!("{needed}[consume]\ngroup = '{of_file}'\nworkers = 1"))?;
    let cases: [Case<'_>; 4] = [
        (&["--config", &without, "consume"], &[], "postonce"),
        (&["consume"], &[("POSTONCE_CONFIG", &with)], &of_file),
        (&["--config", &with, "consume"], &[("POSTONCE_GROUP", "of-env")], "of-env"),
        (&["consume", "--config", &with, "--group", "of-flag"], &[("POSTONCE_GROUP", "of-env")], "of-flag"),
    ];
    for (args, env, expected) in cases {
        let process = PostonceProcess::start(args, env)?;
        let start = wait_until(LIMIT, "a start", || Ok(lines(&process, "consumer starts").pop()))?;
        ensure!(start["group"] == expected, "{args:?} {env:?}: {start}");
        let workers = if expected == "postonce" { 2 } else { 1 };
        ensure!(start["workers"] == workers, "{args:?} {env:?}: {start}");
        if expected == of_file {
            // Nothing but the file has said where Kafka and Postgres are.
            flow.send(payments("settings", 3))?;
            flow.wait_done(LIMIT)?;
        }
    }
    flow.check()
}

fn what_is_wrong_with_the_file_is_told_before_anything_starts() -> Result<()> {
    let files = Files::new()?;
    let path = files.write("postonce.toml", "brokers = 'x:1'\n[consume]\nwrokers = 2\nbatch = 'many'\n")?;
    let wrong = run(&["--config", &path, "consume"], &[])?;
    let expected = format!(
        "postonce: {path}:3: [consume] wrokers: there is no such setting; did you mean workers?\n\
         postonce: {path}:4: [consume] batch = many: invalid digit found in string\n"
    );
    ensure!(wrong.status.code() == Some(2) && told(&wrong) == expected, "{wrong:?}");

    let checked = run(&["config", "check", "--config", &path, "--output", "json"], &[])?;
    let report: Value = serde_json::from_slice(&checked.stdout)?;
    ensure!(checked.status.code() == Some(3) && report["ok"] == false, "{checked:?}");
    for (n, line) in [3, 4].into_iter().enumerate() {
        let finding = &report["checks"][n];
        let what = finding["what"].as_str().unwrap_or_default();
        ensure!(finding["result"] == "problem" && what.starts_with(&format!("{path}:{line}: ")), "{report}");
    }
    let absent = run(&["--config", "/no/such/file", "consume"], &[])?;
    ensure!(
        absent.status.code() == Some(2) && told(&absent).contains("--config /no/such/file: No such file"),
        "{absent:?}"
    );
    Ok(())
}

fn config_check_asks_kafka_and_postgres() -> Result<()> {
    let files = Files::new()?;
    let path = files.0.path().join("new.toml").display().to_string();
    let init = run(&["config", "init", "--out", &path], &[])?;
    ensure!(init.status.success(), "{init:?}");
    let template = run(&["config", "check", "--config", &path], &[])?;
    ensure!(template.status.success(), "{}", told(&template));
    let again = run(&["config", "init", "--out", &path], &[])?;
    ensure!(!again.status.success() && told(&again).contains("File exists"), "{again:?}");

    let flow = Flow::new(&kafka(), Ledger::fresh("config_check")?, "config_check", 1)?;
    let check = |name: &str, brokers: &str, topic: &str, url: &str| {
        let text = format!("topic = '{topic}'\ndatabase-url = '{url}'\n[consume]\nbrokers = '{brokers}'\n");
        let path = files.write(name, &text)?;
        let checked = run(&["config", "check", "--connect", "--config", &path], &[])?;
        Ok::<_, anyhow::Error>((checked.status.code(), told(&checked), path))
    };
    let (code, said, _) = check("right.toml", flow.bootstrap(), &flow.topic, &flow.ledger.url)?;
    ensure!(code == Some(0), "{said}");
    for expected in ["cluster ", "fsync=on", "cleanup.policy=delete", "migrations applied", "others may read it"] {
        ensure!(said.contains(expected), "no {expected} in\n{said}");
    }
    let empty = Database::fresh("config_check_empty")?;
    let (code, said, _) = check("empty.toml", flow.bootstrap(), "no-such-topic", &empty.url)?;
    ensure!(code == Some(3) && said.contains("run `postonce migrate`") && said.contains("no-such-topic"), "{said}");
    let (code, said, path) = check("away.toml", "127.0.0.1:1", "t", "postgres://u:hunter2@127.0.0.1:1/d")?;
    ensure!(code == Some(3), "{said}");
    for place in [":4: 127.0.0.1:1 has not answered", ":2: no connection to Postgres at 127.0.0.1:1/d"] {
        ensure!(said.contains(&format!("{path}{place}")), "no {place} in\n{said}");
    }
    ensure!(!said.contains("hunter2"), "{said}");
    Ok(())
}

fn a_secret_may_stand_in_a_file_of_its_own() -> Result<()> {
    let (files, ledger) = (Files::new()?, Ledger::fresh("secret_file")?);
    let path = files.write("url", &format!("{}\n", ledger.url))?;
    let status = |env: &[(&str, &str)]| run(&["status"], env);
    let right = status(&[("DATABASE_URL_FILE", &path)])?;
    ensure!(right.status.success(), "{right:?}");
    let both = status(&[("DATABASE_URL_FILE", &path), ("DATABASE_URL", &ledger.url)])?;
    let said = told(&both);
    ensure!(both.status.code() == Some(2) && said.contains("are both set; unset one of them"), "{said}");
    let absent = status(&[("DATABASE_URL_FILE", "/no/such/secret")])?;
    let said = told(&absent);
    ensure!(
        absent.status.code() == Some(2) && said.contains("DATABASE_URL_FILE=/no/such/secret: No such file"),
        "{said}"
    );

    // The environment, and so its file, wins over the file of settings.
    let config = files.write("postonce.toml", "database-url = 'postgres://127.0.0.1:1/nowhere'")?;
    let over = run(&["--config", &config, "status"], &[("DATABASE_URL_FILE", &path)])?;
    ensure!(over.status.success(), "{over:?}");
    let properties = files.write("kafka.properties", "client.id=of-a-file\nsasl.username=hunter2")?;
    let refused = run(&["config", "check"], &[("POSTONCE_KAFKA_PROPERTIES_FILE", &properties)])?;
    ensure!(refused.status.success(), "{refused:?}");
    let bad = files.write("bad.properties", "hunter2")?;
    let refused = run(&["config", "check"], &[("POSTONCE_KAFKA_PROPERTIES_FILE", &bad)])?;
    let said = told(&refused);
    ensure!(
        refused.status.code() == Some(2) && said.contains("expected KEY=VALUE") && !said.contains("hunter2"),
        "{said}"
    );
    Ok(())
}

fn no_password_is_ever_told() -> Result<()> {
    let flow = Flow::new(&kafka(), Ledger::fresh("hunter")?, "hunter", 1)?;
    let login = unique("hunter");
    let (right, wrong, kafka_password) = ("hunter2-right", "hunter2-wrong", "hunter2-kafka");
    flow.ledger.db.execute(&format!("CREATE ROLE {login} SUPERUSER LOGIN PASSWORD '{right}'"))?;
    let place = flow.ledger.url.rsplit_once('@').context("no @ in the URL")?.1.to_owned();
    let events = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema/testdata/samples.jsonl").display().to_string();
    let password = format!("sasl.password={kafka_password}");
    let sasl = ["-X", &password, "-X", "sasl.username=u", "-X", "sasl.mechanisms=PLAIN", "-X", "debug=all"];
    for (postgres, protocol, sign) in [
        (right, "PLAINTEXT", "stream claimed"),
        (wrong, "PLAINTEXT", "password authentication failed"),
        // This broker speaks no SASL: it says so after the handshake has begun.
        (right, "SASL_PLAINTEXT", "SASL PLAIN mechanism handshake failed"),
    ] {
        let url = format!("postgres://{login}:{postgres}@{place}");
        let env = [("KAFKA_BROKERS", flow.bootstrap()), ("DATABASE_URL", &url), ("POSTONCE_TOPIC", &flow.topic)];
        let protocol = format!("security.protocol={protocol}");
        let with = |args: &[&str]| -> Vec<String> {
            let all = [args, &sasl, &["-X", &protocol, "--log", "trace"]].concat();
            all.into_iter().map(str::to_owned).collect()
        };
        let mut heard = String::new();
        for args in [
            with(&["send", "--skip-bad", &events, "-X", "message.timeout.ms=3000"]),
            with(&["status"]),
            with(&["config", "check", "--connect"]),
        ] {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            heard.push_str(&told(&run(&args, &env)?));
        }
        let args = with(&["consume"]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let consumer = PostonceProcess::start(&args, &env)?;
        let seen = wait_until(LIMIT, sign, || {
            let said = consumer.stdout() + &consumer.stderr();
            Ok(said.contains(sign).then_some(said))
        })?;
        heard.push_str(&seen);
        ensure!(heard.contains("TRACE"), "this is no trace");
        for secret in [right, wrong, kafka_password] {
            let line = heard.lines().find(|line| line.contains(secret));
            ensure!(line.is_none(), "{secret} is told: {line:?}");
        }
    }
    flow.ledger.db.execute(&format!("DROP ROLE {login}"))?;
    Ok(())
}

fn each_step_of_a_consumer_is_one_line_and_repeats_are_counted() -> Result<()> {
    let flow = Flow::new(&kafka(), Ledger::fresh("log")?, "log", 1)?;
    flow.send(payments("log", 3))?;
    flow.send((0..12).map(|n| Message::new(format!("secret payload {n}"))))?;
    let mut consumer = flow.consume(&["--workers", "1"])?;
    flow.wait_done(LIMIT)?;
    consumer.terminate()?;
    ensure!(consumer.wait(LIMIT)?.success(), "{}", consumer.stderr());
    for (message, times) in
        [("consumer starts", 1), ("partitions assigned", 1), ("stream claimed", 1), ("consumer done", 1)]
    {
        ensure!(lines(&consumer, message).len() == times, "{message}: {}", consumer.stderr());
    }
    let refused = lines(&consumer, "message quarantined");
    let left_out: u64 = lines(&consumer, "more of the same").iter().filter_map(|line| line["times"].as_u64()).sum();
    ensure!(refused.len() >= 5 && left_out > 0 && refused.len() as u64 + left_out == 12, "{}", consumer.stderr());
    for (line, offset) in refused.iter().zip(3..) {
        let place = (&line["topic"], &line["partition"], &line["offset"], &line["code"]);
        ensure!(place == (&flow.topic.as_str().into(), &0.into(), &offset.into(), &"bad_json".into()), "{line}");
        let offsets = line["span"]["offsets"].as_str().unwrap_or_default();
        ensure!(line["span"]["name"] == "batch" && offsets.starts_with("0:"), "{line}");
    }
    ensure!(!consumer.stderr().contains("secret payload"), "{}", consumer.stderr());
    flow.check()
}
