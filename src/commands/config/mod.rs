//! `postonce config`: the file of settings.

mod check;
mod database;
mod init;
mod kafka;

use clap::{Command, Subcommand};
use std::process::ExitCode;

const HELP: &str = "\
A flag wins over its environment variable, that over the file, the file over the
default. The file is read where --config or POSTONCE_CONFIG names it, and nowhere
else: which ledger is written must not depend on the directory somebody is in.

Examples:
  postonce config init --out postonce.toml
  postonce config check --config postonce.toml --connect
  POSTONCE_CONFIG=/etc/postonce.toml postonce consume";

/// Write a file of settings, or check one
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Init(init::Args),
    Check(check::Args),
}

/// `cli` is the tree of commands, which is the list of settings; `file` the file in use.
pub fn run(args: Args, cli: &Command, file: Option<&std::path::Path>) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Init(args) => init::run(args, cli),
        Action::Check(args) => check::run(args, cli, file),
    }
}
