//! `postonce.toml`: settings in a file, below flags and environment, above the defaults.
//!
//! The list of settings is the command line's own tree of commands: a flag is a setting
//! under its long name, so none can be forgotten, and a value is read by the flag's own
//! parser. A section holds for the command of its name and those below it; what stands
//! before the first section holds for all. The nearest section wins.

mod feed;
mod flags;
pub mod secrets;
pub mod template;

use anyhow::Context;
use clap::{Arg, Command};
use flags::Flag;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use feed::command_line;

/// A file of settings that has been read. What is wrong with it keeps nobody from reading
/// the rest: `config check` tells all of it at once.
pub struct Settings {
    path: PathBuf,
    entries: Vec<Entry>,
    pub problems: Vec<Problem>,
}

/// One setting, as the file has it.
struct Entry {
    /// The commands that it holds for begin so: `["quarantine", "retry"]`.
    section: Vec<String>,
    flag: String,
    /// Two flags may share a name; a setting is told from others by its variable.
    variable: String,
    line: usize,
    values: Vec<String>,
}

/// What is wrong with the file, where, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

impl Settings {
    /// Reads a file. Only a file that cannot be read is an error.
    pub fn read(path: &Path, cli: &Command) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
        Ok(Self::parse(path, &text, cli))
    }

    /// How many settings the file has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the file sets what nobody else shall read.
    pub fn holds_secrets(&self, cli: &Command) -> bool {
        let flags = flags::below(cli, &[]);
        let secret = |entry: &Entry| flags.iter().any(|flag| flag.is_secret() && flag.variable() == entry.variable);
        self.entries.iter().any(secret)
    }

    /// `FILE:LINE` of what the file says of this flag of a command, if it is this value that
    /// is in use.
    pub fn place_of(&self, path: &[&str], flag: &str, value: Option<&str>) -> Option<String> {
        let above = |entry: &&Entry| entry.flag == flag && starts_with(path, &entry.section);
        let entry = self.entries.iter().filter(above).max_by_key(|entry| entry.section.len())?;
        let in_use = value.is_none_or(|value| entry.values == [value]);
        in_use.then(|| format!("{}:{}", self.path.display(), entry.line))
    }

    fn parse(path: &Path, text: &str, cli: &Command) -> Self {
        let mut settings = Self { path: path.to_owned(), entries: Vec::new(), problems: Vec::new() };
        match DeTable::parse(text) {
            Ok(table) => Reader { settings: &mut settings, text }.section(table.get_ref(), &[], cli),
            // Its words alone: with the line that they are about, a password could be told.
            Err(error) => {
                let line = error.span().map_or(1, |span| line_at(text, span.start));
                settings.problem(line, error.message().to_owned());
            }
        }
        settings.refuse_contradictions(cli);
        settings.problems.sort_by_key(|problem| problem.line);
        settings
    }

    fn problem(&mut self, line: usize, what: String) {
        self.problems.push(Problem { file: self.path.clone(), line, what });
    }

    /// What the file says of this flag of the command at `path`: in its own section, or in
    /// the nearest above.
    fn entry(&self, path: &[&str], flag: &Arg) -> Option<&Entry> {
        let variable = flags::variable(flag)?;
        let above = |entry: &&Entry| entry.variable == variable && starts_with(path, &entry.section);
        self.entries.iter().filter(above).max_by_key(|entry| entry.section.len())
    }

    /// Two settings of which a command line could have one only.
    fn refuse_contradictions(&mut self, cli: &Command) {
        let mut found = Vec::new();
        for Flag { path, command, arg } in flags::below(cli, &[]) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let Some(entry) = self.entry(&path, arg).filter(|entry| entry.says_something()) else { continue };
            for other in command.get_arg_conflicts_with(arg) {
                if let Some(other) = self.entry(&path, other).filter(|other| other.says_something()) {
                    let what = format!("{} and {} (line {}) exclude each other", entry.flag, other.flag, other.line);
                    found.push((entry.line, what));
                }
            }
        }
        found.dedup();
        found.into_iter().for_each(|(line, what)| self.problem(line, what));
    }
}

impl Entry {
    /// A flag that is `false` says nothing.
    fn says_something(&self) -> bool {
        self.values != ["false"]
    }
}

struct Reader<'a> {
    settings: &'a mut Settings,
    text: &'a str,
}

impl Reader<'_> {
    fn section(&mut self, table: &DeTable<'_>, section: &[&str], command: &Command) {
        for (key, value) in table {
            let line = line_at(self.text, key.span().start);
            let name = key.get_ref().as_ref();
            let said = match (value.get_ref(), command.find_subcommand(name)) {
                (DeValue::Table(inner), Some(subcommand)) => {
                    self.section(inner, &[section, &[name]].concat(), subcommand);
                    Ok(())
                }
                (DeValue::Table(_), None) => Err(flags::no_section(name, section, command)),
                (_, _) => self.setting(name, line, value, section, command),
            };
            if let Err(what) = said {
                self.settings.problem(line, what);
            }
        }
    }

    fn setting(
        &mut self,
        name: &str,
        line: usize,
        value: &Spanned<DeValue<'_>>,
        section: &[&str],
        command: &Command,
    ) -> Result<(), String> {
        let named = flags::named(command, section, name)?;
        let place = place(section, name);
        let mut values = Vec::new();
        for Flag { path, arg, .. } in &named {
            let by =
                if path.len() > section.len() { format!(" (`postonce {}`)", path.join(" ")) } else { String::new() };
            values = texts(value.get_ref(), arg).map_err(|why| format!("{place}: {why}"))?;
            for value in &values {
                let shown = if arg.is_hide_env_values_set() { String::new() } else { format!(" = {value}") };
                flags::accepts(arg, value).map_err(|why| format!("{place}{shown}: {why}{by}"))?;
            }
        }
        if let Some(variable) = named.first().map(Flag::variable) {
            let section = section.iter().map(|&name| name.to_owned()).collect();
            self.settings.entries.push(Entry { section, flag: name.to_owned(), variable, line, values });
        }
        Ok(())
    }
}

/// `[consume] workers`
fn place(section: &[&str], name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("[{}] {name}", section.join(".")) }
}

/// The value as it would stand on the command line, once for each time.
fn texts(value: &DeValue<'_>, arg: &Arg) -> Result<Vec<String>, String> {
    if !arg.get_action().takes_values() {
        return match value {
            DeValue::Boolean(yes) => Ok(vec![yes.to_string()]),
            _ => Err("write true or false".to_owned()),
        };
    }
    match value {
        DeValue::Array(values) if flags::is_repeatable(arg) => {
            values.iter().map(|value| text(value.get_ref())).collect()
        }
        value => Ok(vec![text(value)?]),
    }
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|why| format!("{}: {why}", number.as_str())),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Datetime(time) => Ok(time.to_string()),
        DeValue::Boolean(_) => Err("takes a value, not true or false".to_owned()),
        DeValue::Array(_) => Err("takes one value, not an array".to_owned()),
        DeValue::Table(_) => Err("takes a value, not a table".to_owned()),
    }
}

fn starts_with(path: &[&str], section: &[String]) -> bool {
    path.len() >= section.len() && path.iter().zip(section).all(|(a, b)| a == b)
}

fn line_at(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|&byte| byte == b'\n').count()
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
