//! `postonce demo`: see it happen, on this machine, with nothing installed but Postgres.

use super::interrupt;
use crate::demo::{self, Interrupted, Settings};
use anyhow::Context;
use std::num::NonZeroU32;
use std::process::ExitCode;

const HELP: &str = "\
It starts a private Postgres (found in PATH, by pg_config or where package managers
put it; fsync on) and a Kafka mock broker inside this process, and then:

  sends generated payment events with duplicates, disorder, poison and conflicts;
  starts `postonce consume`, kills it with SIGKILL halfway, and starts it again;
  sends all of it once more;
  shows outcomes, trial balance, accounts, incidents and quarantine;
  checks the books, and ends with 0 only if every check holds.

messages/s: in the first pass while the consumer had the partitions; in the second
from the first message sent to the last outcome, sending included.

Exit codes: 0 every check holds, 1 one failed or an error, 2 wrong usage, 130 or 143
stopped by SIGINT or SIGTERM. Whatever the end, what was started is stopped and its
data removed, but for --keep.

Examples:
  postonce demo
  postonce demo --events 20000 --seed 7
  postonce demo --keep        then look into the ledger with psql
  postonce demo --watch       two consumers at work; Prometheus too, where it is installed";

/// Send, crash, recover, send again, and check the books
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Messages in all, each of them sent twice
    #[arg(long, short = 'n', env = "POSTONCE_DEMO_EVENTS", default_value_t = 300_000, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1_000..=2_000_000))]
    pub events: u64,

    /// Where chance begins: the same seed, the same bytes
    #[arg(long, env = "POSTONCE_DEMO_SEED", default_value_t = 1)]
    pub seed: u64,

    /// Leave Postgres running, and say how to look into the ledger and how to stop it
    #[arg(long, env = "POSTONCE_DEMO_KEEP")]
    pub keep: bool,

    /// Threads of the consumer
    #[arg(long, env = "POSTONCE_DEMO_WORKERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub workers: u16,

    /// Neither crash nor end: two consumers, a steady workload, and `postonce top` on the
    /// terminal until q or Ctrl-C
    #[arg(long, env = "POSTONCE_DEMO_WATCH", conflicts_with = "keep")]
    pub watch: bool,

    /// Messages a second with --watch
    #[arg(long, env = "POSTONCE_DEMO_RATE", default_value = "500", value_name = "PER_SECOND")]
    pub rate: NonZeroU32,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let Args { events, seed, keep, workers, watch, rate } = args;
    let settings = Settings { events, seed, workers, keep };
    if watch {
        demo::watch(&settings, rate)?;
        return Ok(ExitCode::SUCCESS);
    }
    match demo::run(&settings) {
        Ok(true) => Ok(ExitCode::SUCCESS),
        Ok(false) => Ok(ExitCode::FAILURE),
        Err(error) => match error.downcast_ref::<Interrupted>() {
            Some(Interrupted(signal)) => {
                eprintln!("postonce: {error}; what was started is stopped, its data removed");
                Ok(interrupt::exit_code(*signal))
            }
            None => Err(error),
        },
    }
}
