use clap::Parser;
use rdkafka::mocking::MockCluster;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn generate(flags: &[&str]) -> anyhow::Result<ExitCode> {
    run(Cli::try_parse_from(["generate"].iter().chain(flags))?.args)
}

#[test]
fn a_file_holds_one_object_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events.jsonl");
    let flags = ["--events", "2000", "--poison", "0.3", "--out", path.to_str().unwrap()];
    generate(&flags).unwrap();
    let lines = std::fs::read_to_string(&path).unwrap();
    assert_eq!(lines.lines().count(), 2_000);
    for line in lines.lines() {
        postonce_producer::Envelope::parse(line.as_bytes()).unwrap();
    }
}

#[test]
fn straight_to_the_topic() {
    let cluster = MockCluster::new(1).unwrap();
    let brokers = cluster.bootstrap_servers();
    let flags = ["--events", "3000", "--poison", "0.1", "--send", "--brokers", &brokers, "--output", "json"];
    generate(&flags).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |flags: &[&str]| generate(flags).unwrap_err().to_string();
    assert!(refused(&["--poison", "2"]).contains("poison must be from 0 to 1"));
    assert!(refused(&["--start", "2999-01-01T00:00:00Z"]).contains("earlier --start"));
    assert!(refused(&["--out", "/no/such/directory/file"]).contains("/no/such/directory/file"));
    assert!(refused(&["--out", "x", "--send"]).contains("cannot be used with"));
}

#[test]
fn the_summary_adds_up() {
    let workload = Workload { poison: 0.1, duplicates: 0.1, ..Workload::new(500, 1) };
    let mut generator = Generator::new(workload).unwrap();
    while generator.next().is_some() {}
    let json: serde_json::Value = serde_json::from_str(&text(generator.summary(), None, Output::Json)).unwrap();
    let codes = json["poison_by_code"].as_object().unwrap().values().filter_map(serde_json::Value::as_u64);
    assert_eq!(Some(codes.sum::<u64>()), json["poison"].as_u64());
    let table = text(generator.summary(), None, Output::Table);
    assert!(table.starts_with(" events") && table.contains("  unique"), "{table}");
}
