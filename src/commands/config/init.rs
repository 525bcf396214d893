//! `postonce config init`: every setting with its default and its reason.

use crate::settings::template;
use crate::table;
use anyhow::Context;
use clap::Command;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print postonce.toml: every setting with its default and its reason
#[derive(clap::Args)]
#[command(after_long_help = "\
Everything is commented out, so the file changes nothing until you do.

Exit codes: 0 done, 1 an error, 2 wrong usage.

Examples:
  postonce config init --out postonce.toml
  postonce config init | less")]
pub struct Args {
    /// Write to this file, which must not be there yet; only you may read it, for you may put
    /// a password into it
    #[arg(long, env = "POSTONCE_CONFIG_OUT", value_name = "FILE")]
    out: Option<PathBuf>,
}

pub fn run(args: Args, cli: &Command) -> anyhow::Result<ExitCode> {
    let text = template::text(cli);
    match args.out {
        None => table::print(&text)?,
        Some(path) => {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("--out {}", path.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
