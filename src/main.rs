//! `postonce`: payment events in, a double-entry ledger out.

use postonce::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::read(&args) {
        Ok(cli) => cli,
        Err(error) => {
            eprintln!("postonce: {error:#}");
            return ExitCode::from(2);
        }
    };
    let log = postonce::log::start(&cli.log);
    let code = cli.run();
    log.finish();
    code
}
