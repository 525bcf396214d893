//! 9: 1, 2, 4 and 8 workers in one process, on the cores there are, from a topic of eight
//! partitions: more workers than partitions do nothing.

use crate::bench::{Bench, Run};
use crate::kafka;
use crate::load::Payments;
use crate::plan::{Contestant, Measurement};
use anyhow::Result;

pub const MEASUREMENT: Measurement = Measurement {
    number: 9,
    name: "workers",
    what: "1, 2, 4 and 8 workers on the cores there are, from a topic of eight partitions",
    contestants: &[
        Contestant { name: "1 worker", run: |bench, round| of(bench, round, 1) },
        Contestant { name: "2 workers", run: |bench, round| of(bench, round, 2) },
        Contestant { name: "4 workers", run: |bench, round| of(bench, round, 4) },
        Contestant { name: "8 workers", run: |bench, round| of(bench, round, 8) },
    ],
};

/// A partition for each of the most workers.
const PARTITIONS: usize = 8;

fn of(bench: &Bench, round: usize, workers: usize) -> Result<Run> {
    let events = bench.size.pick(12_000, 400_000, 2_000_000);
    let topic = bench.topic(Payments::usual(events), PARTITIONS)?;
    kafka::of(bench, round, &topic, workers)
}
