//! The parts themselves: if one of these fails, the other tests prove nothing.
#![allow(unsafe_code, reason = "raw bindings to libc or librdkafka, in tests")]

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_tests::{
    Database, Db, Kafka, Message, PostonceProcess, PrivatePostgres, Sender, Transaction, Trial, end_offsets, kafka,
    metric, postgres_18, read_all, start_postgres, trials, wait_until,
};

pub fn tests() -> Vec<Trial> {
    trials![
        broker_round_trip_in_every_codec,
        broker_takes_what_the_ledger_refuses,
        aborted_transaction_is_not_read,
        broker_keeps_its_data_over_a_kill,
        every_promise_of_durability_is_on,
        committed_rows_survive_a_crash,
        clean_stop_and_start_keep_port_and_data,
        postgres_18_can_be_had,
        a_detached_server_goes_on_until_its_stop_line,
        a_killed_parent_takes_its_children_along,
        postonce_runs_as_a_child,
        metrics_are_summed_over_series,
    ]
}

fn broker_round_trip_in_every_codec() -> Result<()> {
    let kafka = kafka();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = kafka.topic(codec, 2)?;
        let sent: Vec<Message> = (0..100)
            .map(|n| {
                Message::new(format!("{n} {}", "a".repeat(500)))
                    .key(format!("key {n}"))
                    .header("n", n.to_string())
                    .timestamp(1_000_000_000_000 + n)
                    .partition((n % 2) as i32)
            })
            .collect();
        let places = Sender::new(&kafka.bootstrap(), codec)?.send(&topic, sent.clone())?;
        let mut expected: Vec<Message> = sent
            .into_iter()
            .zip(places)
            .map(|(message, (partition, offset))| {
                assert_eq!(message.partition, Some(partition));
                Message { offset: Some(offset), ..message }
            })
            .collect();
        expected.sort_by_key(|message| (message.partition, message.offset));
        assert_eq!(read_all(&kafka.bootstrap(), &topic)?, expected, "{codec}");
        assert_eq!(end_offsets(&kafka.bootstrap(), &topic)?, [50, 50]);
    }
    Ok(())
}

fn broker_takes_what_the_ledger_refuses() -> Result<()> {
    let kafka = kafka();
    let topic = kafka.topic("odd", 1)?;
    let odd = [Message::tombstone().key("k"), Message::new(vec![0xff, 0x00]), Message::new(vec![b'x'; 2 << 20])];
    Sender::new(&kafka.bootstrap(), "none")?.send(&topic, odd.clone())?;
    let read = read_all(&kafka.bootstrap(), &topic)?;
    assert_eq!(read.len(), 3);
    for (read, sent) in read.iter().zip(&odd) {
        assert_eq!((&read.key, &read.value), (&sent.key, &sent.value));
    }
    Ok(())
}

fn aborted_transaction_is_not_read() -> Result<()> {
    let kafka = kafka();
    let topic = kafka.topic("transactions", 1)?;
    let aborted = Transaction::begin(&kafka.bootstrap())?;
    aborted.send(&topic, [Message::new("aborted")])?;
    aborted.abort()?;
    let committed = Transaction::begin(&kafka.bootstrap())?;
    committed.send(&topic, [Message::new("committed")])?;
    committed.commit()?;
    let read = read_all(&kafka.bootstrap(), &topic)?;
    assert_eq!(read.into_iter().map(|message| message.value.unwrap()).collect::<Vec<_>>(), [b"committed"]);
    // Two messages and a marker for the end of each transaction.
    assert_eq!(end_offsets(&kafka.bootstrap(), &topic)?, [4]);
    Ok(())
}

fn broker_keeps_its_data_over_a_kill() -> Result<()> {
    let mut kafka = Kafka::start()?;
    let topic = kafka.topic("kept", 1)?;
    Sender::new(&kafka.bootstrap(), "zstd")?.send(&topic, [Message::new("before")])?;
    kafka.kill()?;
    kafka.start_again()?;
    Sender::new(&kafka.bootstrap(), "zstd")?.send(&topic, [Message::new("after")])?;
    let values: Vec<_> = read_all(&kafka.bootstrap(), &topic)?.into_iter().map(|message| message.value).collect();
    assert_eq!(values, [Some(b"before".to_vec()), Some(b"after".to_vec())]);
    kafka.delete_topic(&topic)?;
    Ok(())
}

fn every_promise_of_durability_is_on() -> Result<()> {
    let database = Database::fresh("durable")?;
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        assert_eq!(database.db.one::<String>(&format!("SHOW {setting}"))?, "on", "{setting}");
    }
    Ok(())
}

fn committed_rows_survive_a_crash() -> Result<()> {
    let mut server = start_postgres(&[("log_min_messages", "log")])?;
    let database = Database::fresh_in(&server, "crash")?;
    database.db.execute("CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 1000)")?;
    for way in [PrivatePostgres::kill_postmaster, PrivatePostgres::stop_immediately] {
        way(&mut server)?;
        // Sessions outlive their killed postmaster by a moment.
        wait_until(Duration::from_secs(5), "the end of the sessions", || {
            Ok(database.db.execute("SELECT 1").is_err().then_some(()))
        })?;
        server.start_again()?;
        assert_eq!(database.db.one::<i64>("SELECT count(*) FROM t")?, 1000);
    }
    ensure!(server.log_tail(1000).contains("automatic recovery in progress"), "no crash was seen");
    Ok(())
}

fn clean_stop_and_start_keep_port_and_data() -> Result<()> {
    let mut server = start_postgres(&[])?;
    let database = Database::fresh_in(&server, "stop")?;
    database.db.execute("CREATE TABLE t AS SELECT 1 AS n")?;
    let port = server.port();
    server.stop_fast()?;
    server.start_again()?;
    assert_eq!(server.port(), port);
    let db = postonce_tests::Db::new(&database.url);
    assert_eq!(db.rows::<(i32,)>("SELECT n FROM t")?, [(1,)]);
    let data = server.data_dir();
    drop(server);
    ensure!(!data.exists(), "{} is left behind", data.display());
    Ok(())
}

fn postgres_18_can_be_had() -> Result<()> {
    let Some(server) = postgres_18() else {
        eprintln!("skipped: there are no binaries of Postgres 18 for this machine");
        return Ok(());
    };
    let database = Database::fresh_in(&server, "eighteen")?;
    let version: String = database.db.one("SHOW server_version")?;
    ensure!(version.starts_with("18.") && server.major_version() == 18, "it is {version}");
    Ok(())
}

fn a_detached_server_goes_on_until_its_stop_line() -> Result<()> {
    let server = start_postgres(&[])?;
    Database::fresh_in(&server, "kept")?.db.execute("CREATE TABLE t ()")?;
    let kept = server.detach()?;
    let db = Db::new(&kept.url);
    assert_eq!(db.one::<i32>("SELECT 1")?, 1);
    let status = Command::new("sh").args(["-c", &kept.stop_line]).status()?;
    ensure!(status.success() && !kept.directory.exists(), "the stop line left something: {status}");
    ensure!(db.one::<i32>("SELECT 1").is_err(), "the server still answers");
    Ok(())
}

/// The server of a process that is killed with SIGKILL ends by itself.
fn a_killed_parent_takes_its_children_along() -> Result<()> {
    let own = std::env::current_exe()?;
    let mut parent = Command::new(own).env(HOLD, "1").stdout(std::process::Stdio::piped()).spawn()?;
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(parent.stdout.take().unwrap()), &mut line)?;
    let data = std::path::PathBuf::from(line.trim());
    let pid: i32 = std::fs::read_to_string(data.join("postmaster.pid"))?.lines().next().unwrap_or_default().parse()?;
    parent.kill()?;
    parent.wait()?;
    wait_until(Duration::from_secs(10), "the end of the orphaned server", || {
        // SAFETY: signal 0 only asks whether the process is there.
        Ok((unsafe { libc::kill(pid, 0) } != 0).then_some(()))
    })?;
    std::fs::remove_dir_all(data.parent().unwrap())?;
    Ok(())
}

/// With this variable set, this program is the parent that is to be killed.
pub const HOLD: &str = "POSTONCE_TEST_HOLD";

/// Starts a server from a thread that ends at once, prints its directory, and waits.
pub fn hold_until_killed() {
    let server = std::thread::spawn(|| start_postgres(&[])).join().unwrap().unwrap();
    println!("{}", server.data_dir().display());
    std::thread::sleep(Duration::from_secs(600));
}

fn postonce_runs_as_a_child() -> Result<()> {
    PostonceProcess::run(&["--help"], &[], Duration::from_secs(10))?;
    Ok(())
}

fn metrics_are_summed_over_series() -> Result<()> {
    let page = "# HELP a text\na{x=\"1\",y=\"1\"} 2\na{x=\"1\",y=\"2\"} 3\na{x=\"2\",y=\"1\"} 4\nab 9\nb 1e3\n";
    assert_eq!(metric(page, "a", &[("x", "1")]), Some(5.0));
    assert_eq!(metric(page, "a", &[]), Some(9.0));
    assert_eq!(metric(page, "b", &[]), Some(1000.0));
    assert_eq!(metric(page, "a", &[("x", "3")]), None);
    Ok(())
}
