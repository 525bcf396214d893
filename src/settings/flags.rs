//! Which flag a key of the file means, found in the tree of commands.

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;

/// From here on two names are too far from each other for "did you mean".
const NEAR: f64 = 0.9;

/// A flag of one command.
#[derive(Clone)]
pub struct Flag<'c> {
    /// The command's names, from below `postonce`.
    pub path: Vec<String>,
    pub command: &'c Command,
    pub arg: &'c Arg,
}

impl Flag<'_> {
    /// Its environment variable, by which the same setting is known in every command.
    pub fn variable(&self) -> String {
        variable(self.arg).unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.arg.get_long().unwrap_or_default()
    }

    /// Whether its value must never be shown.
    pub fn is_secret(&self) -> bool {
        self.arg.is_hide_env_values_set()
    }
}

/// The variable of a flag that is a setting: not of `--help`, and not of the file's own name.
pub fn variable(arg: &Arg) -> Option<String> {
    let is_setting = arg.get_long().is_some() && arg.get_id() != CONFIG;
    arg.get_env().filter(|_| is_setting).map(|name| name.to_string_lossy().into_owned())
}

/// The flag that names the file.
pub const CONFIG: &str = "config";

/// Every flag of a command and of those below it.
pub fn below<'c>(command: &'c Command, path: &[&str]) -> Vec<Flag<'c>> {
    let own = command.get_arguments().filter(|arg| variable(arg).is_some());
    let owned: Vec<String> = path.iter().map(|&name| name.to_owned()).collect();
    let mut found: Vec<Flag<'c>> = own.map(|arg| Flag { path: owned.clone(), command, arg }).collect();
    for subcommand in command.get_subcommands() {
        found.extend(below(subcommand, &[path, &[subcommand.get_name()]].concat()));
    }
    found
}

/// The flags that a key in this section means. Where one name is of several settings, that
/// which most commands have; where none is, the section must say which.
pub fn named<'c>(command: &'c Command, section: &[&str], name: &str) -> Result<Vec<Flag<'c>>, String> {
    let flags = below(command, section);
    let mut settings: BTreeMap<String, Vec<Flag<'c>>> = BTreeMap::new();
    for flag in flags.iter().filter(|flag| flag.name() == name) {
        settings.entry(flag.variable()).or_default().push(flag.clone());
    }
    let most = settings.values().map(Vec::len).max().unwrap_or(0);
    let mut most_common: Vec<_> = settings.into_values().filter(|flags| flags.len() == most).collect();
    match (most_common.pop(), most_common.is_empty()) {
        (Some(flags), true) => Ok(flags),
        (Some(last), false) => Err(format!(
            "{name} is another setting in each of {}: write it into the section of one",
            sections(most_common.iter().flatten().chain(&last))
        )),
        (None, _) => Err(unknown(name, section, &flags)),
    }
}

fn sections<'f>(flags: impl Iterator<Item = &'f Flag<'f>>) -> String {
    flags.map(|flag| format!("[{}]", flag.path.join("."))).collect::<Vec<_>>().join(", ")
}

fn unknown(name: &str, section: &[&str], flags: &[Flag<'_>]) -> String {
    let place = super::place(section, name);
    match nearest(name, flags.iter().map(Flag::name)) {
        Some(near) => format!("{place}: there is no such setting; did you mean {near}?"),
        None if section.is_empty() => format!("{place}: there is no such setting; `postonce config init` prints all"),
        None => format!(
            "{place}: `postonce {}` has no such setting; what all commands share stands before the first section",
            section.join(" ")
        ),
    }
}

/// What to say of a section that is no command.
pub fn no_section(name: &str, section: &[&str], command: &Command) -> String {
    let inner = [section, &[name]].concat().join(".");
    match nearest(name, command.get_subcommands().map(Command::get_name)) {
        Some(near) => {
            format!("[{inner}]: there is no such command; did you mean [{}]?", [section, &[near]].concat().join("."))
        }
        None => format!("[{inner}]: there is no such command; `postonce --help` has all"),
    }
}

fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let name = name.replace('_', "-");
    let names: BTreeSet<&str> = names.collect();
    let likeness = |other: &&str| strsim::jaro_winkler(&name, other);
    let near = names.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(&near) >= NEAR).then_some(near)
}

/// Whether it may stand several times on a command line.
pub fn is_repeatable(arg: &Arg) -> bool {
    matches!(arg.get_action(), clap::ArgAction::Append)
}

/// Has the flag's own parser read a value.
pub fn accepts(arg: &Arg, value: &str) -> Result<(), String> {
    if !arg.get_action().takes_values() {
        return Ok(());
    }
    // Alone: what it needs or excludes, and what its variable says, is another question.
    let alone = arg.clone().required(false).env(Resettable::Reset).requires(Resettable::Reset);
    let alone = alone.conflicts_with(Resettable::Reset);
    let option = format!("--{}={value}", arg.get_long().unwrap_or_default());
    let command = Command::new("postonce").no_binary_name(true).arg(alone);
    let Err(error) = command.try_get_matches_from([option]) else { return Ok(()) };
    if let Some(why) = error.source() {
        return Err(why.to_string());
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) => Err(format!("not one of {}", valid.join(", "))),
        _ => Err("not such a value".to_owned()),
    }
}
