use clap::Parser;
use rdkafka::mocking::MockCluster;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Runs `send` on a file with this content, on a broker of its own.
fn send(content: &[u8], flags: &[&str]) -> anyhow::Result<ExitCode> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("payments", 2, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    std::fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap();
    let arguments = ["send", path, "--brokers", &brokers].into_iter().chain(flags.iter().copied());
    run(Cli::try_parse_from(arguments).unwrap().args)
}

/// `ExitCode` has no `PartialEq`.
fn is_success(code: ExitCode) -> bool {
    format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS)
}

const GOOD: &[u8] = b"{\"type\":\"a.b\",\"resource\":\"r1\"}\n";

#[test]
fn every_line_is_sent_in_each_form() {
    for flags in [&[][..], &["--cloudevents", "structured"], &["--cloudevents", "binary", "--output", "json"]] {
        assert!(is_success(send(&GOOD.repeat(3_000), flags).unwrap()), "{flags:?}");
    }
    assert!(is_success(send(b"", &[]).unwrap()));
}

#[test]
fn a_malformed_line_stops_the_run_and_is_named() {
    let content = [GOOD, GOOD, b"\n{\"type\":\"a.b\"}\n", GOOD].concat();
    let error = send(&content, &[]).unwrap_err().to_string();
    assert!(error.contains("events.jsonl:4: no \"resource\""), "{error}");
    assert!(error.contains("2 events before it were confirmed"), "{error}");
}

#[test]
fn skip_bad_goes_on() {
    let content = [GOOD, b"not JSON\n", GOOD].concat();
    assert!(send(&content, &[]).unwrap_err().to_string().contains("events.jsonl:2: not an event"));
    assert!(is_success(send(&content, &["--skip-bad"]).unwrap()));
}

#[test]
fn an_event_that_kafka_does_not_take_is_an_error() {
    let long = format!("{{\"resource\":\"r\",\"note\":\"{}\"}}\n", "x".repeat(5_000));
    let content = [GOOD, long.as_bytes(), GOOD].concat();
    let error = send(&content, &["-X", "message.max.bytes=2000"]).unwrap_err().to_string();
    assert_eq!(error, "1 of 3 events were not delivered");
}

#[test]
fn what_is_missing_is_named() {
    let cli = Cli::try_parse_from(["send", "/no/such/file", "-b", "127.0.0.1:1"]).unwrap();
    let error = run(cli.args).unwrap_err().to_string();
    assert_eq!(error, "cannot open /no/such/file");
}
