//! A rolling update: the release before this one and this one in one group, on the new
//! schema, under load.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use postonce_tests::{Flow, Ledger, QUICK, Trial, kafka, payments, trials};

const LIMIT: Duration = Duration::from_secs(120);
/// The program `postonce` of the release before this one.
const PREVIOUS: &str = "POSTONCE_PREVIOUS";

pub fn tests() -> Vec<Trial> {
    trials![the_previous_release_beside_this_one]
}

fn the_previous_release_beside_this_one() -> Result<()> {
    let Some(previous) = std::env::var_os(PREVIOUS) else {
        eprintln!("skipped: there is no release yet (give the previous one's program in {PREVIOUS})");
        return Ok(());
    };
    let previous = Path::new(&previous);
    let kafka = kafka();
    // The schema is the new one: whoever updates migrates first.
    let flow = Flow::new(&kafka, Ledger::fresh("versions")?, "versions", 4)?;
    flow.ledger.slow_down(0.03)?;
    flow.send_load(30_000, 9)?;
    let more = [&QUICK[..], &["--workers", "1", "--batch", "300"]].concat();
    let (one, other) = (flow.consume_by(previous, &more)?, flow.consume_by(previous, &more)?);
    flow.wait_offsets(4_000, LIMIT)?;
    let new = flow.consume(&more)?;
    one.finish()?;
    flow.wait_offsets(10_000, LIMIT)?;
    // Both have posted, side by side.
    for (consumer, which) in [(&other, "previous"), (&new, "new")] {
        consumer.wait_metric("postonce_events_total", &[], 1.0, LIMIT)?;
        ensure!(consumer.ready()? == 200, "the {which} release is not ready");
    }
    // Back again: what the new one wrote, the previous one reads.
    let back = flow.consume_by(previous, &more)?;
    new.finish()?;
    flow.wait_offsets(18_000, LIMIT)?;
    ensure!(flow.ledger.offsets()? < 30_000, "the load was over");
    flow.ledger.slow_down(0.0)?;
    let last = flow.consume(&more)?;
    other.finish()?;
    back.finish()?;
    flow.send(payments("last", 100))?;
    flow.wait_done(LIMIT)?;
    last.finish()?;
    flow.check_against_undisturbed()
}
