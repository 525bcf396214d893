//! The file that `config init` writes: every setting, commented out at its default, with
//! the flag's own help as its reason.

use super::flags::{self, Flag};
use super::secrets;
use clap::{Arg, Command};
use std::collections::{BTreeMap, BTreeSet};

/// A setting of so many commands (all of `quarantine` are one) is the installation's rather
/// than a question's, and stands above the sections.
const SHARED: usize = 3;
const WIDTH: usize = 96;

const HEAD: &str = "\
# Settings of Postonce. Every line is its default: remove the # of what you change.
#
# A flag wins over its environment variable, that over this file, and this file over the
# default. Nobody looks for this file: name it by --config FILE or POSTONCE_CONFIG.
# `postonce config check --connect` says whether it is right.
#
# What stands before the first [section] holds for every command that has the flag; a
# section holds for the command of its name, and wins over what stands before it: with
# `database-url` in [migrate] too, migrations run as another login than consumers.
# A key is a flag's long name. Keys that nobody knows are errors.
#
# Passwords are better kept in files of their own: the variables DATABASE_URL_FILE and
# POSTONCE_KAFKA_PROPERTIES_FILE name files that hold what the variable without _FILE would.
";

/// The whole file.
pub fn text(cli: &Command) -> String {
    let all = flags::below(cli, &[]);
    let shared = shared(&all);
    let mut out = HEAD.to_owned();
    for flag in &shared {
        push(&mut out, flag);
    }
    let above: BTreeSet<String> = shared.iter().map(Flag::variable).collect();
    let mut section = Vec::new();
    for flag in all.iter().filter(|flag| !above.contains(&flag.variable())) {
        if flag.path != section {
            section.clone_from(&flag.path);
            out.push_str(&format!("\n\n[{}]\n", section.join(".")));
        }
        push(&mut out, flag);
    }
    out
}

/// The settings that many commands have in the same sense, each in the words that most of
/// them use; what most commands have comes first.
fn shared<'c>(all: &[Flag<'c>]) -> Vec<Flag<'c>> {
    let mut settings: BTreeMap<String, Vec<&Flag<'c>>> = BTreeMap::new();
    for flag in all {
        settings.entry(flag.variable()).or_default().push(flag);
    }
    let same = |flags: &Vec<&Flag<'c>>| {
        let senses: BTreeSet<(&str, String)> = flags.iter().map(|flag| (flag.name(), line(flag.arg))).collect();
        senses.len() == 1
    };
    let is_global = |flags: &Vec<&Flag<'c>>| flags.iter().any(|flag| flag.arg.is_global_set());
    let mut many: Vec<Vec<&Flag<'c>>> =
        settings.into_values().filter(|flags| is_global(flags) || (commands(flags) >= SHARED && same(flags))).collect();
    many.sort_by_key(|flags| std::cmp::Reverse(if is_global(flags) { 0 } else { commands(flags) }));
    let most_common = |flags: Vec<&Flag<'c>>| {
        let times = |flag: &&Flag<'c>| flags.iter().filter(|other| help(other.arg) == help(flag.arg)).count();
        flags.iter().max_by_key(|flag| times(flag)).map(|&flag| flag.clone())
    };
    many.into_iter().filter_map(most_common).collect()
}

fn commands(flags: &[&Flag<'_>]) -> usize {
    flags.iter().filter_map(|flag| flag.path.first()).collect::<BTreeSet<_>>().len()
}

fn push(out: &mut String, flag: &Flag<'_>) {
    out.push('\n');
    for line in wrapped(&help(flag.arg)) {
        out.push_str(&format!("# {line}\n"));
    }
    let file = secrets::variable(flag.arg).map(|file| format!(" or {file}")).unwrap_or_default();
    let has_default = !flag.arg.get_action().takes_values() || !flag.arg.get_default_values().is_empty();
    let default = if has_default { "" } else { "; no default" };
    out.push_str(&format!("# {}{file}{default}\n#{} = {}\n", flag.variable(), flag.name(), line(flag.arg)));
}

fn help(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let mut text = help.map(ToString::to_string).unwrap_or_default();
    let possible = arg.get_possible_values();
    if arg.get_action().takes_values() && !possible.is_empty() {
        let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
        text.push_str(&format!(" ({})", names.join(", ")));
    }
    text
}

/// The default as TOML. Where there is none, what is to be put there.
fn line(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return "false".to_owned();
    }
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    let value = match default {
        Some(default) if default.parse::<f64>().is_ok() => default,
        Some(default) => quoted(&default),
        None => quoted(&arg.get_value_names().and_then(<[_]>::first).map_or("VALUE".to_owned(), ToString::to_string)),
    };
    if flags::is_repeatable(arg) { format!("[{value}]") } else { value }
}

fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last().map_or(0, String::len);
        if line > 0 && line + 1 + word.len() > WIDTH {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
