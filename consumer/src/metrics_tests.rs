use super::*;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

#[test]
fn every_metric_has_a_sentence_and_a_conventional_name() {
    for Described { name, kind, help, buckets, .. } in Metrics::DESCRIBED {
        assert!(name.starts_with("postonce_"), "{name}");
        assert!(help.ends_with('.') && help.starts_with(|c: char| c.is_ascii_uppercase() || c == '1'), "{help}");
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        assert_eq!(buckets.is_empty(), *kind != "histogram", "{name}");
        assert!(buckets.is_sorted(), "{name}");
    }
    let metrics = Metrics::new().expect("metrics");
    metrics.events.with_label_values(&["posted"]).inc();
    let page = metrics.render().expect("a page");
    assert!(page.contains("# HELP postonce_events_total Messages with a committed outcome"));
    assert!(page.contains(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"} 1")), "{page}");
}

#[test]
fn what_is_described_is_what_is_registered() {
    let metrics = Metrics::new().expect("metrics");
    let named: BTreeSet<_> = Metrics::DESCRIBED.iter().map(|described| described.name).collect();
    assert_eq!(named.len(), Metrics::DESCRIBED.len(), "a name is given twice");
    let shown = metrics.registry.gather();
    for family in shown.iter().filter(|family| family.name().starts_with("postonce_")) {
        assert!(named.contains(family.name()), "{}", family.name());
    }
}

#[test]
fn amounts_are_floats_without_a_cast() {
    assert_eq!(float(0), 0.0);
    assert_eq!(float(4_294_967_297), 4_294_967_297.0);
    assert_eq!(float(u64::MAX), 18_446_744_073_709_551_615.0);
}

/// `docs/metrics.md`, written anew.
fn page() -> String {
    let mut page = LEAD.to_owned();
    let mut row = |name: &str, kind: &str, labels: &str, help: &str| {
        writeln!(page, "| `{name}` | {kind} | {} | {labels} | {} |", unit(name, kind), help.replace('|', "\\|"))
            .expect("a string takes all");
    };
    for Described { name, kind, labels, help, .. } in Metrics::DESCRIBED {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        row(name, kind, &labels.join(", "), help);
    }
    let shown = Metrics::new().expect("metrics").registry.gather();
    for family in shown.iter().filter(|family| !family.name().starts_with("postonce_")) {
        row(family.name(), &format!("{:?}", family.type_()).to_lowercase(), "", family.help());
    }
    page.push_str("\n## Buckets\n\nThe upper bounds of the histograms.\n\n| metric | bounds |\n|---|---|\n");
    for Described { name, buckets, .. } in Metrics::DESCRIBED.iter().filter(|one| !one.buckets.is_empty()) {
        let bounds: Vec<String> = buckets.iter().map(f64::to_string).collect();
        writeln!(page, "| {name} | {} |", bounds.join(" ")).expect("a string takes all");
    }
    page
}

/// The unit of a value, as the name says it.
fn unit(name: &str, kind: &str) -> &'static str {
    let base = name.strip_suffix("_total").unwrap_or(name);
    let units = [
        ("_timestamp_seconds", "seconds since 1970"),
        ("_start_time_seconds", "seconds since 1970"),
        ("_seconds", "seconds"),
        ("_bytes", "bytes"),
        ("_messages", "messages"),
        ("_minor_units", "minor units"),
        ("_offset", "offset"),
        ("_offsets", "offsets"),
    ];
    let of_name = units.iter().find(|(suffix, _)| base.ends_with(suffix)).map(|(_, unit)| *unit);
    of_name.unwrap_or(if kind == "gauge" { "" } else { "count" })
}

const LEAD: &str = "\
# Metrics

<!-- Written from the code: POSTONCE_WRITE_DOCS=1 cargo test -p postonce-consumer --lib metrics -->

`postonce consume --listen 0.0.0.0:9464` serves these at `/metrics`, in the text format of Prometheus. Scrape every \
process, every 5 to 15 seconds:

```yaml
scrape_configs:
  - job_name: postonce
    scrape_interval: 5s
    static_configs:
      - targets: [consumer-1:9464, consumer-2:9464]
```

- A gauge with the label `partition` is told by the process that holds the partition; for a moment two may tell it. \
Take `max by (topic, partition) (…)`.
- What is of the whole ledger or of its server (`postonce_quarantine_open`, `postonce_incidents_open`, \
`postonce_verify_…`, `postonce_postgres_wal_bytes_total`) every process tells alike, and asks for it every 15 seconds. \
Take the `max`, never the `sum`.
- A series with labels is there once it has had a value. Where none is good news, write `sum(…) or vector(0)`.
- A process that needs a person (`postonce_stopped`) serves its pages on for `--stop-linger` seconds before it ends with \
its exit code, so that Prometheus sees why: `/livez` says 200, `/readyz` 503 with the reason.

| name | type | unit | labels | help |
|---|---|---|---|---|
";

#[test]
fn the_page_of_the_metrics_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = page();
    if std::env::var_os("POSTONCE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("docs/metrics.md can be written");
    }
    let held = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        held == page,
        "docs/metrics.md is not what the code says; write it anew by\n\
         POSTONCE_WRITE_DOCS=1 cargo test -p postonce-consumer --lib metrics"
    );
}
