//! How settings come below the environment: as defaults of the command that is called.

use super::{Settings, flags, secrets};
use anyhow::{Context, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::ffi::OsString;
use std::path::PathBuf;

/// `cli`, with the file's settings and the environment's secrets as defaults of what `args`
/// call. Flags and variables stay above defaults by themselves.
pub fn command_line(cli: Command, args: &[OsString]) -> anyhow::Result<Command> {
    // Who asks for help, or says what nobody understands, is answered without the file.
    let Ok(said) = cli.clone().ignore_errors(true).try_get_matches_from(args) else { return Ok(cli) };
    let Some((name, _)) = said.subcommand() else { return Ok(cli) };
    let file = said.get_one::<PathBuf>(flags::CONFIG);
    let settings = file.map(|path| Settings::read(path, &cli)).transpose()?;
    // `config` is there to tell what is wrong.
    if let Some(settings) = settings.as_ref().filter(|settings| !settings.problems.is_empty() && name != "config") {
        let problems: Vec<String> = settings.problems.iter().map(ToString::to_string).collect();
        bail!("{}", problems.join("\npostonce: "));
    }
    feed(cli, &said, &mut Vec::new(), settings.as_ref())
}

fn feed<'m>(
    command: Command,
    said: &'m ArgMatches,
    path: &mut Vec<&'m str>,
    settings: Option<&Settings>,
) -> anyhow::Result<Command> {
    let mut defaults = Vec::new();
    for arg in command.get_arguments().filter(|arg| flags::variable(arg).is_some()) {
        // Who gives one of two that exclude each other has decided.
        let decided = said_by_person(said, arg) || excluded(&command, said, arg);
        if decided {
            secrets::refuse_both(arg)?;
            continue;
        }
        let of_file = || settings.and_then(|settings| settings.entry(as_whom(path), arg));
        let values = secrets::read(arg)?.or_else(|| of_file().map(|entry| entry.values.clone()));
        if let Some(values) = values {
            defaults.push((arg.get_id().clone(), values));
        }
    }
    let command = defaults
        .into_iter()
        .fold(command, |command, (id, values)| command.mut_arg(id, |arg| with_default(arg, values)));
    let Some((name, said)) = said.subcommand() else { return Ok(command) };
    path.push(name);
    let below = command.find_subcommand(name).cloned().context("a command that is not there")?;
    let fed = feed(below, said, path, settings)?;
    Ok(command.mut_subcommand(name, |_| fed))
}

/// `config check` tries what `consume` would use.
fn as_whom<'p>(path: &'p [&'p str]) -> &'p [&'p str] {
    if path == ["config", "check"] { &["consume"] } else { path }
}

fn with_default(arg: Arg, values: Vec<String>) -> Arg {
    let secret = arg.is_hide_env_values_set();
    let values = match arg.get_value_delimiter() {
        Some(delimiter) => vec![values.join(&delimiter.to_string())],
        None => values,
    };
    arg.required(false).hide_default_value(secret).default_values(values)
}

fn said_by_person(said: &ArgMatches, arg: &Arg) -> bool {
    matches!(said.value_source(arg.get_id().as_str()), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

fn excluded(command: &Command, said: &ArgMatches, arg: &Arg) -> bool {
    let excludes = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|conflict| conflict.get_id() == other.get_id())
    };
    let others = command.get_arguments().filter(|other| said_by_person(said, other));
    others.into_iter().any(|other| excludes(arg, other) || excludes(other, arg))
}
