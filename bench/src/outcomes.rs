//! What became of the messages of a run, as the ledger has recorded it.

use crate::ledger::Ledger;
use anyhow::{Result, ensure};
use postonce_consumer::read::counts::Counts;

/// Of all streams.
pub fn counts(ledger: &Ledger<'_>) -> Result<Counts> {
    let batches: Vec<(Vec<u8>,)> = ledger.db.rows("SELECT outcomes FROM postonce.batches")?;
    let mut all = Counts::default();
    for (outcomes,) in &batches {
        all += Counts::of(outcomes)?;
    }
    Ok(all)
}

/// Nothing but events that were new, and so many that were known.
pub fn check(ledger: &Ledger<'_>, new: u64, duplicates: u64) -> Result<()> {
    let counts = counts(ledger)?;
    ensure!(
        (counts.posted + counts.noted, counts.duplicate, counts.messages()) == (new, duplicates, new + duplicates),
        "{new} new events and {duplicates} duplicates became {counts:?}"
    );
    Ok(())
}
