//! 10: the client alone. Parse, id, fingerprint, decide, without I/O: measured by Criterion
//! in `consumer/benches/client.rs`, which `make bench` runs before; its median is read here.

use crate::bench::{Bench, Run};
use crate::plan::{Contestant, Measurement};
use anyhow::{Context, Result};
use postonce_tests::repository;
use serde::Deserialize;
use std::fs;

pub const MEASUREMENT: Measurement = Measurement {
    number: 10,
    name: "client",
    what: "client alone: parse, id, fingerprint, decide, without I/O (Criterion)",
    contestants: &[Contestant { name: "client", run: |bench, _| run(bench) }],
};

/// What Criterion leaves of group `client`, function `event`.
const ESTIMATES: &str = "target/criterion/client/event/new/estimates.json";

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

/// Nanoseconds.
#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

fn run(_: &Bench) -> Result<Run> {
    let path = repository().join(ESTIMATES);
    let text = fs::read_to_string(&path).with_context(|| {
        format!("{}: run `cargo bench -p postonce-consumer --bench client` first, or `make bench`", path.display())
    })?;
    let estimates: Estimates = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(Run::default().with("µs for each event", estimates.median.point_estimate / 1_000.0))
}
