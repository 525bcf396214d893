//! The command line: which command, and how its errors are told.

use crate::commands::{
    balances, checkpoint, config, consume, demo, export, generate, health, id, incidents, migrate, quarantine, rebuild,
    replay, send, statement, status, top, trace, verify,
};
use crate::log::LogArgs;
use crate::remedy::remedy;
use crate::settings;
use crate::table::visible;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use postonce_consumer::stop::Stop;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Payment events go into Kafka at least once; a double-entry ledger comes out of
/// Postgres exactly once, and anyone can prove it.
#[derive(Parser)]
#[command(name = "postonce", version, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub log: LogArgs,

    /// Read settings from this file (`postonce config init` writes one). No file is looked for
    /// anywhere else
    #[arg(long, env = "POSTONCE_CONFIG", value_name = "FILE", global = true, display_order = 902)]
    config: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Migrate(migrate::Args),
    Consume(consume::Args),
    Send(send::Args),
    Generate(generate::Args),
    Status(status::Args),
    Top(top::Args),
    Health(health::Args),
    Balances(balances::Args),
    Trace(trace::Args),
    Statement(statement::Args),
    Checkpoint(checkpoint::Args),
    Quarantine(quarantine::Args),
    Incidents(incidents::Args),
    Export(export::Args),
    Replay(replay::Args),
    Rebuild(rebuild::Args),
    Verify(verify::Args),
    Id(id::Args),
    Config(config::Args),
}

impl Cli {
    /// Flags over environment over the file over defaults. Wrong usage ends the process, and
    /// so does --help; a wrong file or secret is an error.
    pub fn read(args: &[OsString]) -> anyhow::Result<Self> {
        let command = settings::command_line(Self::command(), args)?;
        Ok(Self::from_arg_matches(&command.get_matches_from(args)).unwrap_or_else(|error| error.exit()))
    }

    /// Runs the command. An error goes to stderr with all its causes.
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            Command::Demo(args) => demo::run(args),
            Command::Migrate(args) => migrate::run(args),
            Command::Consume(args) => consume::run(args),
            Command::Send(args) => send::run(args),
            Command::Generate(args) => generate::run(args),
            Command::Status(args) => status::run(args),
            Command::Top(args) => top::run(args),
            Command::Health(args) => health::run(args),
            Command::Balances(args) => balances::run(args),
            Command::Trace(args) => trace::run(args),
            Command::Statement(args) => statement::run(args),
            Command::Checkpoint(args) => checkpoint::run(args),
            Command::Quarantine(args) => quarantine::run(args),
            Command::Incidents(args) => incidents::run(args),
            Command::Export(args) => export::run(args),
            Command::Replay(args) => replay::run(args),
            Command::Rebuild(args) => rebuild::run(args),
            Command::Verify(args) => verify::run(args),
            Command::Id(args) => id::run(args),
            Command::Config(args) => config::run(args, &Self::command(), self.config.as_deref()),
        };
        result.unwrap_or_else(|error| {
            // It may repeat what came from outside.
            let told = told(&error).lines().map(visible).collect::<Vec<_>>().join("\n");
            eprintln!("postonce: {told}");
            if let Some(remedy) = remedy(&error) {
                eprintln!("postonce: {remedy}");
            }
            error.downcast_ref::<Stop>().map_or(ExitCode::FAILURE, |stop| ExitCode::from(stop.exit_code()))
        })
    }
}

/// With its causes, each once: many an error says its cause itself.
pub(crate) fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |told, cause| match told.as_str() {
        "" => cause,
        said if said.ends_with(&cause) => told,
        said => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let cause =
            anyhow::anyhow!("connection refused").context("no broker: connection refused").context("cannot send");
        assert_eq!(told(&cause), "cannot send: no broker: connection refused");
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_names_a_flag_as_those_that_all_have() {
        let cli = Cli::command();
        for global in cli.get_arguments().filter(|argument| argument.is_global_set()) {
            for command in cli.get_subcommands() {
                let same = command.get_arguments().any(|argument| argument.get_id() == global.get_id());
                assert!(!same, "{} {}", command.get_name(), global.get_id());
            }
        }
    }

    #[test]
    fn every_flag_has_an_environment_variable() {
        check_flags(&Cli::command());
    }

    fn check_flags(command: &clap::Command) {
        for flag in command.get_arguments().filter(|argument| !argument.is_positional()) {
            let automatic = ["help", "version"].contains(&flag.get_id().as_str());
            assert!(automatic || flag.get_env().is_some(), "{} --{}", command.get_name(), flag.get_id());
        }
        command.get_subcommands().for_each(check_flags);
    }
}
