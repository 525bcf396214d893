//! `postonce checkpoint`: the books of this moment, signed off as JSON.

use crate::args::{DatabaseArgs, RulesArgs};
use crate::{reader, table};
use anyhow::Context;
use postonce_consumer::chain;
use postonce_consumer::checkpoint::{Checkpoint, take};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
The JSON holds, as of one moment: each stream's offset with the hash of every message
before it, one hash over the books (kind, resource, the event that stands, its
fingerprint, its postings), the trial balance of each asset, and the rules in use.
Keep it where nobody who can write the database can write: whoever has the topic can
recompute the first, whoever has the rules the second, also after a restore.
ARCHITECTURE.md defines both byte for byte; tests/audit.py recomputes the first.

It reads every resource in one snapshot: seconds for millions.

Examples:
  postonce checkpoint > 2026-01-31.json
  postonce checkpoint --out /mnt/worm/$(date +%F).json
  postonce checkpoint | gpg --clearsign > checkpoint.asc";

/// Sign off the books of this moment as JSON that can be kept outside
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Write to this file, which must not exist yet, instead of stdout
    #[arg(long, env = "POSTONCE_OUT", value_name = "FILE")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub rules: RulesArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rules = args.rules.read()?;
    let checkpoint = reader::ask(&args.database, async |connection| Ok(take(connection, &rules).await?))?;
    let json = table::json(&checkpoint)?;
    match &args.out {
        Some(path) => {
            write_new(path, &json).with_context(|| format!("--out {}", path.display()))?;
            eprint!("{}", summary(&checkpoint, path));
        }
        None => table::print(&json)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What is signed off is never written over; and it is on the disk before we say so.
fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::create_new(path)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a checkpoint is none. The first error is the one to tell.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn summary(checkpoint: &Checkpoint, path: &Path) -> String {
    let offsets: i64 = checkpoint.streams.iter().map(|stream| stream.next_offset - stream.first_offset).sum();
    format!(
        "{}: {} streams, {offsets} offsets, {} resources, books {}\n",
        path.display(),
        checkpoint.streams.len(),
        checkpoint.books.resources,
        chain::hex::text(&checkpoint.books.sha256)
    )
}
