//! What can be said about a run of the bench.

use clap::{Parser, ValueEnum};
use postonce::args::Output;
use serde::Serialize;
use std::path::PathBuf;
use std::thread::available_parallelism;

const HELP: &str = "\
Starts a Postgres and an Apache Kafka of its own (`./setup.sh test` fetches what is
missing), gives each run a fresh database, lets the baselines take turns (A B A B),
and prints the median of the rounds with the least and the greatest. Ratios come
first: they say more than the figures of one machine. Every ledger that it fills is
checked; one that is not right is an error, and so is a figure that is missing.

Measurements: 1 ceiling, 2 memory, 3 kafka, 4 one_by_one, 5 replay, 6 growth, 7 hot,
8 latency, 9 workers, 10 client, 11 sink, 12 retailer.

Exit code: 0 measured, whatever the figures are; 1 something could not be measured.

Examples:
  make bench
  make bench SIZE=full
  target/release/postonce-bench --only 1,2,3
  target/release/postonce-bench --size tiny --only kafka --output json | jq .targets
  target/release/postonce-bench --pg-bin target/postgres18/bin --directory /mnt/disk";

/// Measure Postonce against named baselines, on real Postgres and real Apache Kafka
#[derive(Parser)]
#[command(name = "postonce-bench", version, max_term_width = 100, after_long_help = HELP)]
pub struct Args {
    /// How much is measured: `tiny` only shows that everything works
    #[arg(long, short = 's', env = "POSTONCE_BENCH_SIZE", default_value = "default")]
    pub size: Size,

    /// Only these measurements, by number or by name; all by default
    #[arg(long, env = "POSTONCE_BENCH_ONLY", value_delimiter = ',', value_name = "MEASUREMENT")]
    pub only: Vec<String>,

    /// How often each run is repeated, in turn with those that it is compared with
    #[arg(long, env = "POSTONCE_BENCH_ROUNDS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=99))]
    rounds: Option<u16>,

    /// Workers of the consumer, and connections of the baselines; by default one for each
    /// core, and at most one for each of the topic's four partitions
    #[arg(long, env = "POSTONCE_BENCH_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,

    /// Where the data lies: a directory on a disk, which everybody may enter. By default the
    /// first of $TMPDIR, /tmp and /var/tmp that is no file system in memory
    #[arg(long, env = "POSTONCE_BENCH_DIRECTORY", value_name = "DIR")]
    pub directory: Option<PathBuf>,

    /// The directory of `initdb` and `postgres`; looked for if not given
    #[arg(long, env = "POSTONCE_BENCH_PG_BIN", value_name = "DIR")]
    pub pg_bin: Option<PathBuf>,

    /// How the result is printed on stdout
    #[arg(long, short = 'o', env = "POSTONCE_OUTPUT", default_value = "table")]
    pub output: Output,

    /// Write the result as JSON to this file, too
    #[arg(long, env = "POSTONCE_BENCH_JSON_FILE", value_name = "FILE")]
    pub json_file: Option<PathBuf>,

    /// Write the plot of the growth runs as SVG to this file
    #[arg(long, env = "POSTONCE_BENCH_PLOT_FILE", value_name = "FILE")]
    pub plot_file: Option<PathBuf>,
}

/// How much is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// A minute: shows that everything works, and judges no time
    Tiny,
    /// Under half an hour
    Default,
    /// Hours: with growth to 20 million events
    Full,
}

impl Size {
    /// The number for this size.
    pub fn pick<T>(self, tiny: T, default: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Default => default,
            Self::Full => full,
        }
    }
}

/// Partitions of a topic, if not said otherwise.
pub const PARTITIONS: usize = 4;

impl Args {
    pub fn rounds(&self) -> usize {
        self.rounds.map_or(self.size.pick(1, 3, 5), usize::from)
    }

    pub fn workers(&self) -> usize {
        let cores = available_parallelism().map_or(1, usize::from);
        self.workers.map_or(cores.min(PARTITIONS), usize::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_flag_has_an_environment_variable() {
        let command = Args::command();
        command.clone().debug_assert();
        for flag in command.get_arguments() {
            let automatic = ["help", "version"].contains(&flag.get_id().as_str());
            assert!(automatic || flag.get_env().is_some(), "--{}", flag.get_id());
        }
    }
}
