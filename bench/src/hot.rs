//! 7: the hot account. Every event on one merchant, on 5,000, on 100,000: from memory, as 2,
//! for the merchants' balances are what differs and Kafka would only blur it.

use crate::bench::{Bench, Run};
use crate::load::Payments;
use crate::memory;
use crate::plan::{Contestant, Measurement};
use anyhow::Result;

pub const MEASUREMENT: Measurement = Measurement {
    number: 7,
    name: "hot",
    what: "hot account: all events on one merchant, on 5,000, on 100,000; from memory",
    contestants: &[
        Contestant { name: "1 merchant", run: |bench, round| of(bench, round, 1) },
        Contestant { name: "5,000 merchants", run: |bench, round| of(bench, round, 5_000) },
        Contestant { name: "100,000 merchants", run: |bench, round| of(bench, round, 100_000) },
    ],
};

fn of(bench: &Bench, round: usize, merchants: u64) -> Result<Run> {
    memory::of(bench, round, Payments { events: bench.memory_events(), merchants })
}
