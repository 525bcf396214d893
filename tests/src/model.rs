//! A naive model of the ledger, to compare the real one with: it parses every
//! event into a `serde_json::Value`, sorts, takes the greatest, and sums.
//!
//! Written from the design alone. It shares no code with the ledger: the rules are
//! the tables below, typed by hand, and ids, fingerprints, times and account paths
//! are computed anew. It knows nothing of order, batches, duplicates or differences.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The rules from one time on.
pub struct Version {
    pub number: i32,
    pub from: &'static str,
    pub kinds: &'static [Kind],
}

pub struct Kind {
    pub name: &'static str,
    /// In the order of the fingerprint.
    pub fields: &'static [(&'static str, Is)],
    /// In the order of their places.
    pub states: &'static [State],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Is {
    /// Names an account: every state needs it.
    Account,
    Amount,
    Currency,
    Asset,
    /// The postings of a journal.
    Lines,
}

pub struct State {
    pub name: &'static str,
    pub rank: u16,
    /// debit, credit, field of the amount, field of the unit.
    pub position: &'static [[&'static str; 4]],
}

/// An account's path and asset.
pub type Account = (String, String);
/// Debits minus credits; accounts that hold nothing are absent.
pub type Balances = BTreeMap<Account, i128>;
/// Kind and path.
pub type Resource = (String, String);

/// What the books must be in the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Books {
    pub balances: Balances,
    pub resources: BTreeMap<Resource, Final>,
    /// Event ids and fingerprints, in hex.
    pub known: BTreeSet<(String, String)>,
}

/// The state in which a resource ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Final {
    pub state: String,
    /// In UTC with six decimals.
    pub updated_at: String,
    pub rules_version: i32,
    pub facts: Value,
    pub position: Balances,
}

pub(crate) struct Event {
    pub kind: &'static Kind,
    pub state: &'static State,
    pub place: usize,
    pub version: i32,
    pub resource: String,
    pub updated_at: Timestamp,
    pub facts: Map<String, Value>,
    /// In hex, like the id.
    pub fingerprint: String,
    pub id: String,
}

/// One line of a position: money from `credit` to `debit`.
pub(crate) struct Line {
    pub debit: String,
    pub credit: String,
    pub amount: i128,
    pub asset: String,
}

/// The books after these events, in whatever order and however often they came.
pub fn books<'e>(rules: &'static [Version], events: impl IntoIterator<Item = &'e str>) -> Books {
    let mut books = Books::default();
    let mut all: BTreeMap<Resource, Vec<Event>> = BTreeMap::new();
    for text in events {
        let event = read(rules, text).unwrap();
        books.known.insert((event.id.clone(), event.fingerprint.clone()));
        all.entry((event.kind.name.to_owned(), event.resource.clone())).or_default().push(event);
    }
    for (resource, mut events) in all {
        events.sort_by(|a, b| {
            (a.state.rank, a.updated_at, a.place, &a.fingerprint).cmp(&(
                b.state.rank,
                b.updated_at,
                b.place,
                &b.fingerprint,
            ))
        });
        let greatest = events.pop().unwrap();
        let position = position(&greatest).unwrap();
        for (account, amount) in &position {
            *books.balances.entry(account.clone()).or_default() += amount;
        }
        let end = Final {
            state: greatest.state.name.to_owned(),
            updated_at: format!("{:.6}", greatest.updated_at),
            rules_version: greatest.version,
            facts: Value::Object(greatest.facts),
            position,
        };
        books.resources.insert(resource, end);
    }
    books.balances.retain(|_, amount| *amount != 0);
    books
}

/// The version in force at a time.
pub fn version_at(rules: &'static [Version], time: Timestamp) -> &'static Version {
    let from = |version: &Version| version.from.parse::<Timestamp>().unwrap();
    rules.iter().rev().find(|version| from(version) <= time).unwrap()
}

/// An error is what this reader does not understand.
pub(crate) fn read(rules: &'static [Version], text: &str) -> Result<Event> {
    let json: Value = serde_json::from_str(text)?;
    let type_ = text_of(&json["type"])?;
    let resource = text_of(&json["resource"])?.to_owned();
    let nanoseconds: Timestamp = text_of(&json["updatedAt"])?.parse()?;
    let updated_at = Timestamp::from_microsecond(nanoseconds.as_microsecond())?;
    let version = version_at(rules, updated_at);
    let (kind, state) = type_.split_once('.').context("a type without a dot")?;
    let kind = version.kinds.iter().find(|known| known.name == kind).context("an unknown kind")?;
    let place = kind.states.iter().position(|known| known.name == state).context("an unknown state")?;
    let facts = facts(kind, &json["data"])?;
    let head = format!("{type_}\n{resource}\n{updated_at:.6}");
    Ok(Event {
        id: hex(&Sha256::digest(format!("postonce:v1\n{head}"))),
        fingerprint: hex(&Sha256::digest(preimage(kind, &head, &facts)?)[..16]),
        kind,
        state: &kind.states[place],
        place,
        version: version.number,
        resource,
        updated_at,
        facts,
    })
}

/// The fields that the rules name, a journal's lines each with a unit of its own.
fn facts(kind: &Kind, data: &Value) -> Result<Map<String, Value>> {
    let mut facts = Map::new();
    for (field, is) in kind.fields {
        let Some(value) = data.get(field) else { continue };
        let mut value = value.clone();
        if *is == Is::Lines {
            for line in value.as_array_mut().context("lines that are no list")? {
                if line.get("currency").is_none() && line.get("asset").is_none() {
                    line["currency"] = data["currency"].clone();
                }
            }
        }
        facts.insert((*field).to_owned(), value);
    }
    Ok(facts)
}

fn preimage(kind: &Kind, head: &str, facts: &Map<String, Value>) -> Result<String> {
    let mut text = format!("postonce:fingerprint:v1\n{head}\n");
    for (field, _) in kind.fields {
        text += field;
        match facts.get(*field) {
            None => {}
            Some(Value::String(value)) => text += &format!("={value}"),
            Some(Value::Number(value)) => text += &format!("={value}"),
            Some(Value::Array(lines)) => {
                text += &format!("={}", lines.len());
                for line in lines {
                    let [debit, credit, unit] = [text_of(&line["debit"])?, text_of(&line["credit"])?, unit_of(line)?];
                    text += &format!("\n{debit} {credit} {} {unit}", line["amount"]);
                }
            }
            Some(other) => bail!("{field} is {other}"),
        }
        text += "\n";
    }
    Ok(text)
}

fn position(event: &Event) -> Result<Balances> {
    let mut position = Balances::new();
    for Line { debit, credit, amount, asset } in lines(event)? {
        *position.entry((debit, asset.clone())).or_default() += amount;
        *position.entry((credit, asset)).or_default() -= amount;
    }
    position.retain(|_, amount| *amount != 0);
    Ok(position)
}

/// What a resource holds in the state of this event.
pub(crate) fn lines(event: &Event) -> Result<Vec<Line>> {
    let fact = |name: &str| event.facts.get(name).with_context(|| format!("no {name}"));
    let amount = |value: &Value| value.as_u64().map(i128::from).context("an amount that is no integer");
    let mut lines = Vec::new();
    for [debit, credit, field, unit] in event.state.position {
        lines.push(Line {
            debit: fill(debit, event)?,
            credit: fill(credit, event)?,
            amount: amount(fact(field)?)?,
            asset: text_of(fact(unit)?)?.to_owned(),
        });
    }
    // Only `journal.posted` carries its own lines into the books.
    if (event.kind.name, event.state.name) == ("journal", "posted") {
        for line in fact("postings")?.as_array().context("lines that are no list")? {
            lines.push(Line {
                debit: text_of(&line["debit"])?.to_owned(),
                credit: text_of(&line["credit"])?.to_owned(),
                amount: amount(&line["amount"])?,
                asset: unit_of(line)?.to_owned(),
            });
        }
    }
    Ok(lines)
}

fn fill(account: &str, event: &Event) -> Result<String> {
    let mut path = account.to_owned();
    for (field, is) in event.kind.fields {
        let hole = format!("{{{field}}}");
        if *is == Is::Account && path.contains(&hole) {
            path = path.replace(&hole, &encode(text_of(&event.facts[*field])?));
        }
    }
    Ok(path)
}

fn encode(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn unit_of(line: &Value) -> Result<&str> {
    text_of(line.get("currency").unwrap_or(&line["asset"]))
}

fn text_of(value: &Value) -> Result<&str> {
    value.as_str().context("something else where a text belongs")
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

use Is::{Account as A, Amount as N, Asset as U, Currency as C, Lines as L};

const fn state(name: &'static str, rank: u16, position: &'static [[&'static str; 4]]) -> State {
    State { name, rank, position }
}

/// The design's table.
pub const SHIPPED: Version = Version {
    number: 1,
    from: "1970-01-01T00:00:00Z",
    kinds: &[
        Kind {
            name: "payment",
            fields: &[("provider", A), ("merchant", A), ("amount", N), ("currency", C), ("fee", N)],
            states: &[
                state("created", 1, &[]),
                state("authorized", 2, &[]),
                state("cancelled", 3, &[]),
                state("failed", 4, &[]),
                state(
                    "succeeded",
                    5,
                    &[
                        ["assets:psp:{provider}", "liabilities:merchant:{merchant}", "amount", "currency"],
                        ["liabilities:merchant:{merchant}", "income:fees", "fee", "currency"],
                    ],
                ),
                state("reversed", 5, &[]),
            ],
        },
        Kind {
            name: "fee",
            fields: &[("merchant", A), ("amount", N), ("currency", C)],
            states: &[
                state("charged", 1, &[["liabilities:merchant:{merchant}", "income:fees", "amount", "currency"]]),
                state("reversed", 1, &[]),
            ],
        },
        Kind {
            name: "refund",
            fields: &[("merchant", A), ("provider", A), ("amount", N), ("currency", C)],
            states: &[
                state("created", 1, &[]),
                state("cancelled", 2, &[]),
                state(
                    "succeeded",
                    3,
                    &[["liabilities:merchant:{merchant}", "assets:psp:{provider}", "amount", "currency"]],
                ),
                state("failed", 3, &[]),
            ],
        },
        Kind {
            name: "dispute",
            fields: &[("provider", A), ("amount", N), ("currency", C), ("fee", N), ("merchant", A)],
            states: &[
                state("inquiry", 1, &[]),
                state(
                    "opened",
                    2,
                    &[
                        ["assets:disputes:{provider}", "assets:psp:{provider}", "amount", "currency"],
                        ["expenses:dispute_fees", "assets:psp:{provider}", "fee", "currency"],
                    ],
                ),
                state("won", 2, &[["expenses:dispute_fees", "assets:psp:{provider}", "fee", "currency"]]),
                state(
                    "lost",
                    2,
                    &[
                        ["assets:disputes:{provider}", "assets:psp:{provider}", "amount", "currency"],
                        ["liabilities:merchant:{merchant}", "assets:disputes:{provider}", "amount", "currency"],
                        ["expenses:dispute_fees", "assets:psp:{provider}", "fee", "currency"],
                    ],
                ),
            ],
        },
        Kind {
            name: "payout",
            fields: &[("merchant", A), ("provider", A), ("amount", N), ("currency", C)],
            states: &[
                state(
                    "created",
                    1,
                    &[["liabilities:merchant:{merchant}", "liabilities:payouts:{provider}", "amount", "currency"]],
                ),
                state("cancelled", 2, &[]),
                state(
                    "paid",
                    3,
                    &[
                        ["liabilities:merchant:{merchant}", "liabilities:payouts:{provider}", "amount", "currency"],
                        ["liabilities:payouts:{provider}", "assets:psp:{provider}", "amount", "currency"],
                    ],
                ),
                state("failed", 3, &[]),
            ],
        },
        Kind {
            name: "topup",
            fields: &[("provider", A), ("customer", A), ("amount", N), ("currency", C)],
            states: &[
                state("created", 1, &[]),
                state("failed", 2, &[]),
                state(
                    "succeeded",
                    3,
                    &[["assets:psp:{provider}", "liabilities:wallet:{customer}", "amount", "currency"]],
                ),
                state("reversed", 3, &[]),
            ],
        },
        Kind {
            name: "transfer",
            fields: &[("from", A), ("to", A), ("amount", N), ("currency", C)],
            states: &[
                state("created", 1, &[]),
                state("failed", 2, &[]),
                state(
                    "succeeded",
                    3,
                    &[["liabilities:wallet:{from}", "liabilities:wallet:{to}", "amount", "currency"]],
                ),
                state("reversed", 3, &[]),
            ],
        },
        Kind {
            name: "settlement",
            fields: &[("bank", A), ("provider", A), ("amount", N), ("currency", C), ("fee", N)],
            states: &[
                state("created", 1, &[]),
                state("failed", 2, &[]),
                state(
                    "succeeded",
                    3,
                    &[
                        ["assets:bank:{bank}", "assets:psp:{provider}", "amount", "currency"],
                        ["expenses:psp:{provider}", "assets:psp:{provider}", "fee", "currency"],
                    ],
                ),
                state("reversed", 3, &[]),
            ],
        },
        Kind {
            name: "conversion",
            fields: &[("provider", A), ("amount", N), ("currency", C), ("to_amount", N), ("to_currency", C)],
            states: &[
                state("created", 1, &[]),
                state("failed", 2, &[]),
                state(
                    "succeeded",
                    3,
                    &[
                        ["equity:conversion:{provider}", "assets:psp:{provider}", "amount", "currency"],
                        ["assets:psp:{provider}", "equity:conversion:{provider}", "to_amount", "to_currency"],
                    ],
                ),
                state("reversed", 3, &[]),
            ],
        },
        Kind {
            name: "journal",
            fields: &[("currency", C), ("postings", L)],
            states: &[state("posted", 1, &[]), state("voided", 1, &[])],
        },
    ],
};

/// The shipped rules and two later versions that judge payments and refunds
/// otherwise: other ranks, another order of the states, other accounts, and a kind
/// that counts points.
pub const THREE_VERSIONS: &[Version] = &[
    SHIPPED,
    Version {
        number: 2,
        from: "2024-01-01T00:00:00Z",
        kinds: &[
            Kind {
                name: "payment",
                fields: &[
                    ("provider", A),
                    ("amount", N),
                    ("currency", C),
                    ("merchant", A),
                    ("country", A),
                    ("tax", N),
                    ("fee", N),
                ],
                states: &[
                    state("reversed", 6, &[]),
                    state("created", 1, &[]),
                    state("failed", 2, &[]),
                    state("authorized", 3, &[["assets:held:{provider}", "equity:held", "amount", "currency"]]),
                    state("cancelled", 3, &[]),
                    state(
                        "succeeded",
                        6,
                        &[
                            ["assets:psp:{provider}", "liabilities:merchant:{merchant}", "amount", "currency"],
                            ["liabilities:merchant:{merchant}", "liabilities:tax:{country}", "tax", "currency"],
                            ["liabilities:merchant:{merchant}", "income:fees:{provider}", "fee", "currency"],
                        ],
                    ),
                ],
            },
            Kind {
                name: "refund",
                fields: &[("merchant", A), ("provider", A), ("amount", N), ("currency", C)],
                states: &[
                    state(
                        "succeeded",
                        1,
                        &[["expenses:refunds:{merchant}", "assets:psp:{provider}", "amount", "currency"]],
                    ),
                    state("failed", 7, &[]),
                ],
            },
            POINTS,
        ],
    },
    Version {
        number: 3,
        from: "2024-06-01T00:00:00Z",
        kinds: &[
            Kind {
                name: "payment",
                fields: &[("merchant", A), ("amount", N), ("currency", C)],
                states: &[
                    state("failed", 5, &[]),
                    state("succeeded", 5, &[["assets:cash", "liabilities:merchant:{merchant}", "amount", "currency"]]),
                    state("reversed", 5, &[]),
                ],
            },
            POINTS,
        ],
    },
];

const POINTS: Kind = Kind {
    name: "points",
    fields: &[("customer", A), ("points", N), ("unit", U)],
    states: &[
        state("earned", 1, &[["expenses:points", "liabilities:points:{customer}", "points", "unit"]]),
        state("expired", 1, &[]),
    ],
};

/// What [`THREE_VERSIONS`] has beyond the shipped rules, as a rules file says it.
pub const LATER_VERSIONS_TOML: &str = r#"
[[version]]
version = 2
from = "2024-01-01T00:00:00Z"

[[version.kind]]
name = "payment"
state = [
  { name = "reversed", rank = 6 },
  { name = "created", rank = 1 },
  { name = "failed", rank = 2 },
  { name = "authorized", rank = 3, position = [
    { debit = "assets:held:{provider}", credit = "equity:held", amount = "amount" },
  ] },
  { name = "cancelled", rank = 3 },
  { name = "succeeded", rank = 6, position = [
    { debit = "assets:psp:{provider}", credit = "liabilities:merchant:{merchant}", amount = "amount" },
    { debit = "liabilities:merchant:{merchant}", credit = "liabilities:tax:{country}", amount = "tax" },
    { debit = "liabilities:merchant:{merchant}", credit = "income:fees:{provider}", amount = "fee" },
  ] },
]

[[version.kind]]
name = "refund"
state = [
  { name = "succeeded", rank = 1, position = [
    { debit = "expenses:refunds:{merchant}", credit = "assets:psp:{provider}", amount = "amount" },
  ] },
  { name = "failed", rank = 7 },
]

[[version.kind]]
name = "points"
state = [
  { name = "earned", rank = 1, position = [
    { debit = "expenses:points", credit = "liabilities:points:{customer}", amount = "points", asset = "unit" },
  ] },
  { name = "expired", rank = 1 },
]

[[version]]
version = 3
from = "2024-06-01T00:00:00Z"

[[version.kind]]
name = "payment"
state = [
  { name = "failed", rank = 5 },
  { name = "succeeded", rank = 5, position = [
    { debit = "assets:cash", credit = "liabilities:merchant:{merchant}", amount = "amount" },
  ] },
  { name = "reversed", rank = 5 },
]

[[version.kind]]
name = "points"
state = [
  { name = "earned", rank = 1, position = [
    { debit = "expenses:points", credit = "liabilities:points:{customer}", amount = "points", asset = "unit" },
  ] },
  { name = "expired", rank = 1 },
]
"#;

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
