//! `postonce`: payment events in, a double-entry ledger out.

use clap::Parser;
use postonce::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    postonce::log::start(&cli.log);
    cli.run()
}
