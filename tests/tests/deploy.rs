//! What stands between the program and those who run it: logins, health checks, signals,
//! the steady workload, and the terminal.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce::private_postgres::free_port;
use postonce_tests::{
    Barrier, Db, Flow, Ledger, Message, PostonceProcess, Trial, kafka, payments, repository, start_postgres, trials,
    wait_until,
};
use serde_json::Value;

pub fn tests() -> Vec<Trial> {
    trials![
        the_compose_files_logins_can_do_their_work,
        health_says_ready_not_ready_and_away,
        a_second_signal_ends_it_at_once,
        a_workload_without_end_keeps_its_pace_and_ends_well,
        top_shows_what_the_consumers_do,
    ]
}

const LIMIT: Duration = Duration::from_secs(60);

/// On a server of its own: its logins have names that other tests might take.
fn the_compose_files_logins_can_do_their_work() -> Result<()> {
    let (kafka, server) = (kafka(), start_postgres(&[])?);
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "logins")?, "logins", 1)?;
    let url = flow.ledger.url.clone();
    for password in ["first", "it's \"another\""] {
        let logins = Command::new("psql")
            .args(["--quiet", "--no-psqlrc", "--dbname", &url])
            .arg(format!("--variable=consumer_password={password}"))
            .arg("--variable=grafana_password=look")
            .arg("--file")
            .arg(repository().join("deploy/logins.sql"))
            .output()
            .context("psql")?;
        ensure!(logins.status.success(), "{}", String::from_utf8_lossy(&logins.stderr));
    }
    let place = url.rsplit_once('@').context("no @ in the URL")?.1;
    let consumer = format!("postgres://consumer:it%27s%20%22another%22@{place}");
    let grafana = format!("postgres://grafana:look@{place}");

    let running = flow.consume_through(&consumer, &[])?;
    flow.send(payments("logins", 20))?;
    flow.wait_done(LIMIT).with_context(|| running.stderr())?;
    running.finish()?;
    let balances: i64 = Db::new(&grafana).one("SELECT count(*) FROM postonce.trial_balance")?;
    ensure!(balances == 1, "the reader sees {balances} assets");
    let refused = Db::new(&consumer).execute("DELETE FROM postonce.postings").map_err(|error| format!("{error:#}"));
    ensure!(refused.is_err_and(|why| why.contains("permission denied")), "the consumer may delete what is posted");
    Ok(())
}

fn health_says_ready_not_ready_and_away() -> Result<()> {
    let kafka = kafka();
    let mut server = start_postgres(&[])?;
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "health")?, "health", 1)?;
    let consumer = flow.consume(&["--workers", "1"])?;
    consumer.wait_ready(200, LIMIT)?;
    // As the variable says it to both, in a container.
    let listen = format!("0.0.0.0:{}", consumer.port());
    let health = |args: &[&str]| -> Result<(Option<i32>, String)> {
        let mut asked = PostonceProcess::start(&[&["health"], args].concat(), &[("POSTONCE_LISTEN", &listen)])?;
        Ok((asked.wait(LIMIT)?.code(), asked.stderr()))
    };
    ensure!(health(&[])?.0 == Some(0), "ready, and {:?}", health(&[])?);

    server.stop_immediately()?;
    consumer.wait_ready(503, LIMIT)?;
    let (code, said) = health(&[])?;
    ensure!(code == Some(1) && said.contains("503") && said.contains("worker 0"), "{code:?}: {said}");
    ensure!(health(&["--live"])?.0 == Some(0), "it waits for Postgres, and lives");

    drop(consumer);
    let (code, said) = health(&["--live"])?;
    ensure!(code == Some(1) && said.contains("refused"), "{code:?}: {said}");
    Ok(())
}

/// While a batch waits for somebody, the first signal waits for the batch. The second one
/// waits for nothing, and nothing is lost.
fn a_second_signal_ends_it_at_once() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("second")?, "second", 1)?;
    let barrier = Barrier::before(&flow.ledger, "INSERT", "batches")?;
    let mut consumer = flow.consume(&["--workers", "1"])?;
    flow.send(payments("second", 10))?;
    barrier.wait_arrived(1, LIMIT)?;
    consumer.terminate()?;
    wait_until(LIMIT, "the first signal is heard", || {
        // It is ending, and still there.
        ensure!(consumer.is_running()?, "it has not finished its batch");
        Ok(consumer.stderr().contains("finishing what has begun").then_some(()))
    })?;
    consumer.terminate()?;
    let code = consumer.exit_code(LIMIT)?;
    ensure!(code == 143, "exit code {code}");
    barrier.open()?;
    let again = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    again.finish()?;
    flow.check()
}

fn a_workload_without_end_keeps_its_pace_and_ends_well() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("steady")?, "steady", 2)?;
    let args = ["generate", "--send", "--forever", "--rate", "100", "--topic", &flow.topic, "-o", "json"];
    let brokers = kafka.bootstrap();
    let mut generator = PostonceProcess::start(&args, &[("KAFKA_BROKERS", brokers.as_str())])?;
    wait_until(LIMIT, "150 messages", || Ok((flow.end()? >= 150).then_some(())))?;
    generator.terminate()?;
    let status = generator.wait(LIMIT)?;
    ensure!(status.success(), "{status}: {}", generator.stderr());
    let said: Value = serde_json::from_str(&generator.stdout())?;
    let seconds = said["delivery"]["seconds"].as_f64().context("no seconds")?;
    let sent = said["events"].as_f64().context("no events")?;
    ensure!(sent >= 150.0 && sent <= 100.0 * seconds + 1.0, "{sent} messages in {seconds} s, by 100 a second");
    ensure!(said["unique"] == said["events"], "{said}");
    let consumer = flow.consume(&[])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()
}

fn top_shows_what_the_consumers_do() -> Result<()> {
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("top")?, "top", 2)?;
    let consumer = flow.consume(&["--workers", "1"])?;
    flow.send(payments("top", 30))?;
    flow.send([Message::new(
        r#"{"type":"a\u001b[2J.b","resource":"r","updatedAt":"2026-01-02T03:04:05Z","data":{}}"#,
    )])?;
    flow.wait_done(LIMIT)?;
    let here = format!("127.0.0.1:{}", consumer.port());
    let nobody = format!("127.0.0.1:{}", free_port()?);
    let metrics = format!("{here},{nobody}");
    let env = [("DATABASE_URL", flow.ledger.url.as_str())];
    let top = |more: &[&str]| PostonceProcess::run(&[&["top", "--metrics", &metrics], more].concat(), &env, LIMIT);

    let said: Value = serde_json::from_str(&top(&["--once", "-o", "json"])?)?;
    let total = |outcome: &str| {
        let all = said["outcomes"].as_array().into_iter().flatten();
        all.filter(|row| row["outcome"] == outcome).filter_map(|row| row["total"].as_f64()).sum::<f64>()
    };
    ensure!((total("posted"), total("rejected")) == (30.0, 1.0), "{said}");
    ensure!(said["partitions"].as_array().is_some_and(|rows| rows.len() == 2) && said["lag_messages"] == 0.0, "{said}");
    ensure!(said["instances"][0]["workers_ready"] == 1.0 && said["instances"][0]["problem"].is_null(), "{said}");
    ensure!(said["instances"][1]["problem"].as_str().is_some_and(|why| why.contains("refused")), "{said}");

    // No terminal: it prints one screen and ends.
    let screen = top(&[])?;
    ensure!(screen.contains(&format!("{here}  1 workers ready")), "{screen}");
    ensure!(screen.contains("bad_type") && screen.contains(&format!("{}/", flow.topic)), "{screen}");
    ensure!(!screen.contains('\u{1b}'), "the message steers the terminal");
    consumer.finish()
}
