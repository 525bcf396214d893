//! One question before many things are done.

use anyhow::{Context, bail};
use clap::Args;
use std::io::{self, BufRead, IsTerminal, Write};

/// The `--yes` flag.
#[derive(Args, Clone)]
pub struct YesArgs {
    /// Do not ask; needed with --all where nobody can be asked
    #[arg(long, env = "POSTONCE_YES")]
    pub yes: bool,
}

impl YesArgs {
    /// Whether to go on. Asks on a terminal; without one only `--yes` will do.
    pub fn confirm(&self, what: &str) -> anyhow::Result<bool> {
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            bail!("{what}? Nothing was done: say --yes to do it");
        }
        eprint!("{what}? [y/N] ");
        io::stderr().flush().context("cannot ask")?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}
