//! What the ledger reads of an event's `data`: the fields that the rules of its
//! kind name, and nothing else.
//!
//! The **fingerprint** is over those fields, normalised. Its preimage, version 1,
//! in lines that end with LF:
//!
//! ```text
//! postonce:fingerprint:v1
//! TYPE
//! RESOURCE
//! UPDATED_AT
//! NAME=VALUE        for each field that is there, in the order of the rules
//! NAME              for each field that is not
//! ```
//!
//! A VALUE is the text itself (it holds no control character), the amount in
//! decimal, or the code of currency or asset. For the lines of a journal it is
//! their count, and each follows as a line `DEBIT CREDIT AMOUNT ASSET`, the asset
//! being the line's own or else `data.currency`.

use crate::json::{self, Members, pointer};
use crate::reject::excerpt;
use crate::rules::{MAX_LINES, Role};
use crate::{AccountPath, Amount, Asset, Fingerprint, Kind, Reject, State, Timestamp};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::Write;

/// The longest string that names an account, in bytes.
pub const MAX_TEXT_BYTES: usize = 128;
/// The longest author or reason of a journal, in bytes.
pub const MAX_REASON_BYTES: usize = 4096;

/// The facts of one event, one for each field of its kind, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts<'a>(Vec<Fact<'a>>);

/// One field's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact<'a> {
    Absent,
    Text(Cow<'a, str>),
    Amount(Amount),
    /// A currency or another asset.
    Unit(Asset),
    Lines(Vec<JournalLine>),
}

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLine {
    pub debit: AccountPath,
    pub credit: AccountPath,
    pub amount: Amount,
    pub asset: Asset,
}

impl<'a> Facts<'a> {
    /// Reads an event's `data`. `at` is its place in the message.
    pub fn read(kind: &Kind, state: &State, data: &'a str, at: &str) -> Result<Self, Reject> {
        let facts = Self::read_present(kind, data, at)?;
        for (index, field) in kind.fields.iter().enumerate() {
            // An account must be known in every state: an event that `opened` accepts
            // without it could never be `lost`. An amount must be known where a line
            // names it: silence would let a later snapshot reverse it.
            let why = match field.role {
                Role::Text => "every state of this kind needs it to name an account",
                _ if state.needs.contains(&index) => {
                    "this state's postings need it (no fee is \"fee\": 0, not silence)"
                }
                _ => continue,
            };
            if facts.0[index] == Fact::Absent {
                return Err(Reject::MissingField { at: pointer(at, &field.name), why: why.to_owned() });
            }
        }
        if kind.journal {
            read_signature(data, at)?;
        }
        Ok(facts)
    }

    /// Reads facts back that [`Facts::to_json`] wrote.
    pub fn from_json(kind: &Kind, json: &'a str) -> Result<Self, Reject> {
        Self::read_present(kind, json, "")
    }

    fn read_present(kind: &Kind, data: &'a str, at: &str) -> Result<Self, Reject> {
        let members = Members::read(data, &kind.fields, at)?;
        let mut facts = Vec::with_capacity(kind.fields.len());
        let mut currency = None;
        for (index, field) in kind.fields.iter().enumerate() {
            let place = || pointer(at, &field.name);
            let fact = match members.get(index, place)? {
                None => Fact::Absent,
                Some(raw) => match field.role {
                    Role::Text => Fact::Text(text(raw, place)?),
                    Role::Amount => Fact::Amount(amount(raw, place)?),
                    Role::Currency => Fact::Unit(unit(raw, place, Asset::currency, unknown_currency)?),
                    Role::Asset => Fact::Unit(unit(raw, place, Asset::unit, bad_asset)?),
                    Role::Lines => Fact::Lines(journal_lines(raw, &place(), currency)?),
                },
            };
            if let (Fact::Unit(asset), "currency") = (&fact, field.name.as_str()) {
                currency = Some(*asset);
            }
            facts.push(fact);
        }
        Ok(Self(facts))
    }

    /// The fact of the field at `index` of the kind's fields.
    pub fn get(&self, index: usize) -> &Fact<'a> {
        &self.0[index]
    }

    /// What the database keeps: a JSON object of the fields that are there.
    pub fn to_json(&self, kind: &Kind) -> String {
        let mut object = String::with_capacity(256);
        object.push('{');
        for (field, fact) in kind.fields.iter().zip(&self.0).filter(|(_, fact)| **fact != Fact::Absent) {
            if object.len() > 1 {
                object.push(',');
            }
            for text in ["\"", &field.name, "\":"] {
                object.push_str(text);
            }
            match fact {
                Fact::Absent => {}
                Fact::Text(text) => quote(text, &mut object),
                // Writing to a string does not fail.
                Fact::Amount(amount) => _ = write!(object, "{amount}"),
                Fact::Unit(asset) => quote(asset.as_str(), &mut object),
                Fact::Lines(lines) => object.push_str(&lines_to_json(lines)),
            }
        }
        object.push('}');
        object
    }

    /// The fingerprint's preimage, as this module's documentation defines it.
    pub fn preimage(&self, kind: &Kind, state: &State, resource: &str, updated_at: Timestamp) -> String {
        let mut out = String::with_capacity(512);
        for text in ["postonce:fingerprint:v1\n", &kind.name, ".", &state.name, "\n", resource, "\n"] {
            out.push_str(text);
        }
        updated_at.write(&mut out);
        out.push('\n');
        for (field, fact) in kind.fields.iter().zip(&self.0) {
            out.push_str(&field.name);
            if *fact != Fact::Absent {
                out.push('=');
            }
            // Writing to a string does not fail.
            match fact {
                Fact::Absent => {}
                Fact::Text(text) => out.push_str(text),
                Fact::Amount(amount) => _ = write!(out, "{amount}"),
                Fact::Unit(asset) => out.push_str(asset.as_str()),
                Fact::Lines(lines) => {
                    _ = write!(out, "{}", lines.len());
                    for JournalLine { debit, credit, amount, asset } in lines {
                        _ = write!(out, "\n{} {} {amount} {asset}", debit.as_str(), credit.as_str());
                    }
                }
            }
            out.push('\n');
        }
        out
    }

    /// SHA-256 over the preimage, cut to 16 bytes.
    pub fn fingerprint(&self, kind: &Kind, state: &State, resource: &str, updated_at: Timestamp) -> Fingerprint {
        Fingerprint::of(self.preimage(kind, state, resource, updated_at).as_bytes())
    }

    /// Facts that no longer borrow from the message.
    pub fn into_owned(self) -> Facts<'static> {
        Facts(self.0.into_iter().map(Fact::into_owned).collect())
    }
}

impl Fact<'_> {
    fn into_owned(self) -> Fact<'static> {
        match self {
            Self::Absent => Fact::Absent,
            Self::Text(text) => Fact::Text(Cow::Owned(text.into_owned())),
            Self::Amount(amount) => Fact::Amount(amount),
            Self::Unit(asset) => Fact::Unit(asset),
            Self::Lines(lines) => Fact::Lines(lines),
        }
    }
}

fn text<'a>(raw: &'a RawValue, at: impl Fn() -> String) -> Result<Cow<'a, str>, Reject> {
    let text = json::string(raw, &at)?;
    check_text(&text, MAX_TEXT_BYTES, at)?;
    Ok(text)
}

fn check_text(text: &str, max: usize, at: impl Fn() -> String) -> Result<(), Reject> {
    let why = match text {
        "" => "the text is empty".to_owned(),
        _ if text.len() > max => format!("the text has {} bytes", text.len()),
        _ if json::has_control(text) => format!("{} holds a control character", excerpt(text)),
        _ => return Ok(()),
    };
    Err(Reject::BadText { at: at(), why, max })
}

fn amount(raw: &RawValue, at: impl Fn() -> String) -> Result<Amount, Reject> {
    match raw.get().as_bytes().first() {
        Some(b'-' | b'0'..=b'9' | b'"') => {
            Amount::parse(raw.get()).ok_or_else(|| Reject::BadAmount { at: at(), text: excerpt(raw.get()) })
        }
        _ => Err(Reject::WrongType { at: at(), expected: "an integer of minor units", found: json::type_of(raw) }),
    }
}

fn unit(
    raw: &RawValue,
    at: impl Fn() -> String,
    read: fn(&str) -> Option<Asset>,
    refuse: fn(String, String) -> Reject,
) -> Result<Asset, Reject> {
    let code = json::string(raw, &at)?;
    read(&code).ok_or_else(|| refuse(at(), excerpt(&code)))
}

fn unknown_currency(at: String, text: String) -> Reject {
    Reject::UnknownCurrency { at, text }
}

fn bad_asset(at: String, text: String) -> Reject {
    Reject::BadAsset { at, text }
}

/// `author` and `reason`: who answers for a correction by hand, and why. They
/// are checked but stay outside the fingerprint.
fn read_signature(data: &str, at: &str) -> Result<(), Reject> {
    const NAMES: [&str; 2] = ["author", "reason"];
    let members = Members::read(data, &NAMES, at)?;
    for (index, name) in NAMES.iter().enumerate() {
        let place = || pointer(at, name);
        let raw = members.get(index, place)?.ok_or_else(|| Reject::MissingField {
            at: place(),
            why: "a journal says who made it and why".to_owned(),
        })?;
        let text = json::string(raw, place)?;
        check_signature(&text, place)?;
    }
    Ok(())
}

/// A reason may have lines; it never names an account.
fn check_signature(text: &str, at: impl Fn() -> String) -> Result<(), Reject> {
    if (1..=MAX_REASON_BYTES).contains(&text.len()) {
        return Ok(());
    }
    Err(Reject::BadText { at: at(), why: format!("the text has {} bytes", text.len()), max: MAX_REASON_BYTES })
}

fn journal_lines(raw: &RawValue, at: &str, currency: Option<Asset>) -> Result<Vec<JournalLine>, Reject> {
    if !raw.get().starts_with('[') {
        return Err(Reject::WrongType { at: at.to_owned(), expected: "an array of lines", found: json::type_of(raw) });
    }
    let lines: Vec<&RawValue> = serde_json::from_str(raw.get())
        .map_err(|error| Reject::BadJson { at: at.to_owned(), why: error.to_string() })?;
    if lines.is_empty() || lines.len() > MAX_LINES {
        return Err(Reject::BadJournal { at: at.to_owned(), why: "a journal has 1 to 200 lines" });
    }
    lines.iter().enumerate().map(|(i, line)| journal_line(line, &format!("{at}/{i}"), currency)).collect()
}

fn journal_line(raw: &RawValue, at: &str, currency: Option<Asset>) -> Result<JournalLine, Reject> {
    const NAMES: [&str; 5] = ["debit", "credit", "amount", "currency", "asset"];
    if !raw.get().starts_with('{') {
        return Err(Reject::WrongType { at: at.to_owned(), expected: "an object", found: json::type_of(raw) });
    }
    let members = Members::read(raw.get(), &NAMES, at)?;
    let get = |index: usize| members.get(index, || pointer(at, NAMES[index]));
    let need = |index: usize| {
        let missing = || Reject::MissingField {
            at: pointer(at, NAMES[index]),
            why: "a line has debit, credit and amount".to_owned(),
        };
        get(index)?.ok_or_else(missing)
    };
    let asset = match (get(3)?, get(4)?) {
        (Some(_), Some(_)) => {
            return Err(Reject::BadJournal { at: at.to_owned(), why: "a line has currency or asset, not both" });
        }
        (Some(code), None) => unit(code, || pointer(at, "currency"), Asset::currency, unknown_currency)?,
        (None, Some(name)) => unit(name, || pointer(at, "asset"), Asset::unit, bad_asset)?,
        (None, None) => currency.ok_or_else(|| Reject::MissingField {
            at: pointer(at, "currency"),
            why: "a line without currency or asset takes data.currency, which is missing".to_owned(),
        })?,
    };
    Ok(JournalLine {
        debit: account(need(0)?, || pointer(at, "debit"))?,
        credit: account(need(1)?, || pointer(at, "credit"))?,
        amount: amount(need(2)?, || pointer(at, "amount"))?,
        asset,
    })
}

fn account(raw: &RawValue, at: impl Fn() -> String) -> Result<AccountPath, Reject> {
    let text = json::string(raw, &at)?;
    let bad = |why| Reject::BadAccount { at: at(), text: excerpt(&text), why };
    if text.len() > crate::account::MAX_JOURNAL_PATH {
        return Err(bad("it has more than 512 bytes"));
    }
    AccountPath::parse(&text).map_err(bad)
}

/// Appends a JSON string.
fn quote(text: &str, out: &mut String) {
    if text.bytes().any(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) {
        out.push_str(&serde_json::Value::from(text).to_string());
    } else {
        // Nothing in it needs an escape, as in nearly every name.
        for text in ["\"", text, "\""] {
            out.push_str(text);
        }
    }
}

fn lines_to_json(lines: &[JournalLine]) -> String {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| {
            let unit = if crate::currency::decimals(line.asset.as_str()).is_some() { "currency" } else { "asset" };
            format!(
                "{{\"debit\":\"{}\",\"credit\":\"{}\",\"amount\":{},\"{unit}\":\"{}\"}}",
                line.debit.as_str(),
                line.credit.as_str(),
                line.amount,
                line.asset
            )
        })
        .collect();
    format!("[{}]", lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_quoted_as_any_json_writer_does_it() {
        for c in (0..=0x2ff).filter_map(char::from_u32) {
            let (text, mut quoted) = (format!("a{c}b"), String::new());
            quote(&text, &mut quoted);
            assert_eq!(quoted, serde_json::Value::from(text).to_string());
        }
    }
}
