//! The rules of `positions.toml`: which states a kind has, how they rank, and
//! which postings each holds.
//!
//! The file is read once, checked whole, and turned into indices: an event is
//! judged without a name ever being looked up twice. Everything in it is the name
//! of a field, never an expression, so nothing is ever rounded.

use crate::account::{ROOTS, check_segment};
use crate::{Fact, Facts, Timestamp};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use toml::Spanned;

/// The most lines that a state, or a journal, may have.
pub const MAX_LINES: usize = 200;
/// The most placeholders in one account: bounds the longest path.
const MAX_PLACEHOLDERS: usize = 4;
/// The longest account of the rules before its placeholders are filled, in bytes.
const MAX_TEMPLATE: usize = 512;

/// A rules file that cannot be used, with the line of the file.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct RulesError {
    pub line: usize,
    pub why: String,
}

/// All versions of the rules, the earliest first.
#[derive(Debug)]
pub struct Rules {
    versions: Vec<Version>,
}

/// The rules in force from one point in time until the next version's.
#[derive(Debug)]
pub struct Version {
    pub number: i32,
    pub from: Timestamp,
    pub kinds: Vec<Kind>,
    /// The version in canonical form, one fact a line: what is frozen once used.
    pub lines: Vec<RuleLine>,
}

/// One line of a version's canonical form, and where the file says it.
#[derive(Debug)]
pub struct RuleLine {
    pub text: String,
    pub line: usize,
}

/// One kind of event, such as `payment`.
#[derive(Debug)]
pub struct Kind {
    pub name: String,
    /// The fields of `data` that the ledger reads, in the order in which the
    /// states first name them. The fingerprint follows this order.
    pub fields: Vec<Field>,
    pub states: Vec<State>,
    /// Whether the postings stand in the event itself.
    pub journal: bool,
}

/// One field of `data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    pub role: Role,
}

impl AsRef<str> for Field {
    fn as_ref(&self) -> &str {
        &self.name
    }
}

/// What a field is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A string that names an account.
    Text,
    /// Minor units.
    Amount,
    /// An ISO 4217 code.
    Currency,
    /// Another unit.
    Asset,
    /// The lines of a journal.
    Lines,
}

/// One state of a kind.
#[derive(Debug)]
pub struct State {
    pub name: String,
    /// The greater rank wins, whatever the times.
    pub rank: u16,
    /// Where it stands in the kind's list: breaks ties of rank and time.
    pub place: u16,
    pub lines: Vec<Line>,
    /// The field with this state's own lines, for a journal.
    pub own_lines: Option<usize>,
    /// Indices of the amounts and units that this state's lines name.
    pub needs: Vec<usize>,
}

/// One line of a position; amount and unit are indices into the kind's fields.
#[derive(Debug)]
pub struct Line {
    pub debit: Template,
    pub credit: Template,
    pub amount: usize,
    pub unit: usize,
}

/// An account with placeholders.
#[derive(Debug)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Literal(String),
    Field(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileToml {
    version: Vec<Spanned<VersionToml>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionToml {
    version: i32,
    from: String,
    kind: Vec<Spanned<KindToml>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KindToml {
    name: String,
    state: Vec<Spanned<StateToml>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StateToml {
    name: String,
    rank: u16,
    #[serde(default)]
    position: Vec<Spanned<LineToml>>,
    lines: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineToml {
    debit: String,
    credit: String,
    amount: String,
    currency: Option<String>,
    asset: Option<String>,
}

impl Rules {
    /// Reads and checks a rules file.
    pub fn parse(toml_text: &str) -> Result<Self, RulesError> {
        let source = Source(toml_text);
        let file: FileToml = toml::from_str(toml_text).map_err(|error| RulesError {
            line: error.span().map_or(1, |span| source.line_at(span.start)),
            why: error.message().to_owned(),
        })?;
        let mut versions: Vec<Version> = Vec::with_capacity(file.version.len());
        for version in &file.version {
            let read = read_version(&source, version)?;
            if let Some(before) = versions.last()
                && (read.number <= before.number || read.from <= before.from)
            {
                return Err(source.error(version, "versions must ascend in number and in `from`".to_owned()));
            }
            versions.push(read);
        }
        match versions.first() {
            Some(first) if first.from == Timestamp::EPOCH => Ok(Self { versions }),
            _ => Err(RulesError {
                line: 1,
                why: "the first version must be in force from = \"1970-01-01T00:00:00Z\"".to_owned(),
            }),
        }
    }

    /// All versions, the earliest first.
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// The version in force at a point in time.
    pub fn at(&self, time: Timestamp) -> &Version {
        let later = self.versions.partition_point(|version| version.from <= time);
        // The first version is in force since 1970 and no time is earlier.
        &self.versions[later.saturating_sub(1)]
    }

    /// The version with a number.
    pub fn version(&self, number: i32) -> Option<&Version> {
        self.versions.iter().find(|version| version.number == number)
    }

    /// Every kind's name, in any version.
    pub fn kind_names(&self) -> BTreeSet<&str> {
        self.versions.iter().flat_map(|version| &version.kinds).map(|kind| kind.name.as_str()).collect()
    }
}

impl Version {
    pub fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// The canonical form as one text: what the database keeps.
    pub fn text(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(|line| line.text.as_str()).collect();
        lines.join("\n")
    }

    /// SHA-256 over [`Version::text`].
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.text()).into()
    }

    /// The first line that differs from a version's frozen text: the file's line,
    /// what it was, and what it is now.
    pub fn first_change(&self, frozen: &str) -> Option<(usize, String, String)> {
        let mut was = frozen.lines();
        let mut last = 1;
        for now in &self.lines {
            let was = was.next();
            if was != Some(now.text.as_str()) {
                return Some((now.line, was.unwrap_or("(nothing)").to_owned(), now.text.clone()));
            }
            last = now.line;
        }
        was.next().map(|gone| (last, gone.to_owned(), "(nothing)".to_owned()))
    }
}

impl Kind {
    pub fn state(&self, name: &str) -> Option<&State> {
        self.states.iter().find(|state| state.name == name)
    }

    fn field(&mut self, name: &str, role: Role) -> Result<usize, String> {
        if !is_name(name) {
            return Err(format!("\"{name}\" is not a field name; write [a-z][a-z0-9_]*"));
        }
        if let Some(index) = self.fields.iter().position(|field| field.name == name) {
            let held = self.fields[index].role;
            if held != role {
                return Err(format!(
                    "field \"{name}\" is read as {held:?} elsewhere in kind \"{}\" and as {role:?} here",
                    self.name
                ));
            }
            return Ok(index);
        }
        self.fields.push(Field { name: name.to_owned(), role });
        Ok(self.fields.len() - 1)
    }

    fn template(&mut self, text: &str) -> Result<Template, String> {
        let wrong = |why: &str| format!("account \"{text}\": {why}");
        let (root, rest) = text.split_once(':').ok_or_else(|| wrong("a root alone holds no money"))?;
        if !ROOTS.contains(&root) {
            return Err(wrong("its root is not one of assets, liabilities, equity, income, expenses"));
        }
        if text.len() > MAX_TEMPLATE {
            return Err(wrong("it is longer than 512 bytes"));
        }
        let mut parts = vec![Part::Literal(format!("{root}:"))];
        let mut plain = String::new();
        let mut pieces = rest.split('{');
        push_literal(&mut parts, &mut plain, pieces.next().unwrap_or_default());
        for piece in pieces {
            let (name, literal) = piece.split_once('}').ok_or_else(|| wrong("a { has no }"))?;
            parts.push(Part::Field(self.field(name, Role::Text)?));
            plain.push('x');
            push_literal(&mut parts, &mut plain, literal);
        }
        for segment in plain.split(':') {
            check_segment(segment).map_err(wrong)?;
        }
        if parts.iter().filter(|part| matches!(part, Part::Field(_))).count() > MAX_PLACEHOLDERS {
            return Err(wrong("it has more than four placeholders"));
        }
        Ok(Template { parts })
    }

    fn line(&mut self, line: &LineToml) -> Result<Line, String> {
        let (debit, credit) = (self.template(&line.debit)?, self.template(&line.credit)?);
        let amount = self.field(&line.amount, Role::Amount)?;
        let unit = match (&line.currency, &line.asset) {
            (Some(_), Some(_)) => return Err("a line has `currency` or `asset`, not both".to_owned()),
            (None, Some(asset)) => self.field(asset, Role::Asset)?,
            (currency, None) => self.field(currency.as_deref().unwrap_or("currency"), Role::Currency)?,
        };
        Ok(Line { debit, credit, amount, unit })
    }
}

impl Template {
    /// Appends the account's path with the facts in the placeholders.
    pub fn fill(&self, facts: &Facts<'_>, path: &mut String) {
        for part in &self.parts {
            match part {
                Part::Literal(text) => path.push_str(text),
                Part::Field(index) => match facts.get(*index) {
                    Fact::Text(text) => crate::account::percent_encode(text, path),
                    // Reading refuses an event whose account fields are absent.
                    _ => debug_assert!(false, "an account field is absent"),
                },
            }
        }
    }
}

fn push_literal(parts: &mut Vec<Part>, plain: &mut String, literal: &str) {
    if !literal.is_empty() {
        plain.push_str(literal);
        parts.push(Part::Literal(literal.to_owned()));
    }
}

fn read_version(source: &Source<'_>, spanned: &Spanned<VersionToml>) -> Result<Version, RulesError> {
    let version = spanned.get_ref();
    let from =
        Timestamp::parse(&version.from).map_err(|why| source.error(spanned, format!("`from` is not a time: {why}")))?;
    if version.version < 1 || version.kind.is_empty() {
        return Err(source.error(spanned, "a version has a number from 1 on and at least one kind".to_owned()));
    }
    let mut lines = vec![RuleLine {
        text: format!("version {} from {from}", version.version),
        line: source.line_at(spanned.span().start),
    }];
    let mut kinds: Vec<Kind> = Vec::with_capacity(version.kind.len());
    for kind in &version.kind {
        if kinds.iter().any(|other| other.name == kind.get_ref().name) {
            return Err(source.error(kind, format!("kind \"{}\" stands twice", kind.get_ref().name)));
        }
        kinds.push(read_kind(source, kind, &mut lines)?);
    }
    Ok(Version { number: version.version, from, kinds, lines })
}

fn read_kind(source: &Source<'_>, spanned: &Spanned<KindToml>, lines: &mut Vec<RuleLine>) -> Result<Kind, RulesError> {
    let toml = spanned.get_ref();
    if !is_name(&toml.name) || toml.state.is_empty() {
        return Err(source.error(spanned, "a kind has a name of [a-z][a-z0-9_]* and at least one state".to_owned()));
    }
    lines.push(RuleLine { text: format!("kind {}", toml.name), line: source.line_at(spanned.span().start) });
    let mut kind = Kind { name: toml.name.clone(), fields: Vec::new(), states: Vec::new(), journal: false };
    for state in &toml.state {
        let name = &state.get_ref().name;
        if !is_name(name) || name.len() + kind.name.len() >= crate::event::MAX_TYPE_BYTES {
            return Err(
                source.error(state, format!("state \"{name}\" is not [a-z][a-z0-9_]*, or the type has over 64 bytes"))
            );
        }
        if kind.state(name).is_some() {
            return Err(source.error(state, format!("state \"{name}\" stands twice")));
        }
        let read = read_state(source, &mut kind, state, lines)?;
        kind.states.push(read);
    }
    Ok(kind)
}

fn read_state(
    source: &Source<'_>,
    kind: &mut Kind,
    spanned: &Spanned<StateToml>,
    lines: &mut Vec<RuleLine>,
) -> Result<State, RulesError> {
    let toml = spanned.get_ref();
    let place = u16::try_from(kind.states.len())
        .map_err(|_| source.error(spanned, "a kind has at most 65,535 states".to_owned()))?;
    let own = toml.lines.as_ref().map(|field| format!(" lines {field}")).unwrap_or_default();
    lines.push(RuleLine {
        text: format!("state {}.{} rank {}{own}", kind.name, toml.name, toml.rank),
        line: source.line_at(spanned.span().start),
    });
    if toml.position.len() > MAX_LINES || (toml.lines.is_some() && !toml.position.is_empty()) {
        return Err(source.error(spanned, "a state has at most 200 lines, or `lines` of its own".to_owned()));
    }
    let mut state = State {
        name: toml.name.clone(),
        rank: toml.rank,
        place,
        lines: Vec::new(),
        own_lines: None,
        needs: Vec::new(),
    };
    for line in &toml.position {
        let read = kind.line(line.get_ref()).map_err(|why| source.error(line, why))?;
        state.needs.extend([read.amount, read.unit]);
        state.lines.push(read);
        lines.push(RuleLine {
            text: canonical(kind, &toml.name, line.get_ref()),
            line: source.line_at(line.span().start),
        });
    }
    if let Some(field) = &toml.lines {
        kind.journal = true;
        kind.field("currency", Role::Currency).map_err(|why| source.error(spanned, why))?;
        let index = kind.field(field, Role::Lines).map_err(|why| source.error(spanned, why))?;
        state.own_lines = Some(index);
        state.needs.push(index);
    }
    state.needs.sort_unstable();
    state.needs.dedup();
    Ok(state)
}

fn canonical(kind: &Kind, state: &str, line: &LineToml) -> String {
    let unit = match (&line.currency, &line.asset) {
        (_, Some(asset)) => format!("asset {asset}"),
        (currency, None) => format!("currency {}", currency.as_deref().unwrap_or("currency")),
    };
    format!("line {}.{state} debit {} credit {} amount {} {unit}", kind.name, line.debit, line.credit, line.amount)
}

/// `[a-z][a-z0-9_]*`
pub(crate) fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase()) && bytes.all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
}

struct Source<'t>(&'t str);

impl Source<'_> {
    fn line_at(&self, offset: usize) -> usize {
        self.0.bytes().take(offset).filter(|&b| b == b'\n').count() + 1
    }

    fn error<T>(&self, at: &Spanned<T>, why: String) -> RulesError {
        RulesError { line: self.line_at(at.span().start), why }
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
