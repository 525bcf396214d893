//! Random event sets that meet each other often: few resources, few times, few
//! values; and the ways in which they can arrive.

use jiff::Timestamp;
use jiff::tz::Offset;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use crate::model::{Is, Kind, State, Version, version_at};

/// Around the borders of the versions of `model::THREE_VERSIONS`.
const TIMES: [&str; 7] = [
    "2023-01-02T03:04:05.123456Z",
    "2023-12-31T23:59:59.999999Z",
    "2024-01-01T00:00:00Z",
    "2024-03-01T12:00:00.5Z",
    "2024-05-31T23:59:59.999999Z",
    "2024-06-01T00:00:00Z",
    "2024-06-01T00:00:00.000001Z",
];
const PATHS: [&str; 2] = ["stripe/acct_1/pi_1", "adyen/größe \"x\"/π"];
const NAMES: [&str; 4] = ["stripe", "m_1", "a:b/c%{merchant}é", "-"];
const AMOUNTS: [u64; 5] = [0, 1, 250, 99_999, 9_007_199_254_740_991];
const CURRENCIES: [&str; 3] = ["EUR", "JPY", "DEM"];
const ASSETS: [&str; 2] = ["POINTS", "SKU-7.A_B"];
const JOURNAL_ACCOUNTS: [&str; 4] =
    ["assets:bank:main", "equity:capital", "liabilities:merchant:m_1", "expenses:a%3Ab"];

/// An event, in indices into the lists above.
#[derive(Debug, Clone)]
struct Spec {
    /// Which of the scenario's two kinds.
    kind: usize,
    state: Index,
    path: usize,
    time: usize,
    /// Which value each field has, and whether it is there where it need not be.
    values: [(usize, bool); 5],
}

/// One message: an event, in one of the ways to write it.
#[derive(Debug, Clone)]
pub struct Arriving {
    pub text: String,
    pub partition: u8,
}

/// A set of events and two orders in which they arrive.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub one: Vec<Arriving>,
    pub other: Vec<Arriving>,
    /// How many messages each batch takes, used in turn.
    pub batches: Vec<usize>,
    /// Whether a batch is decided on what it read before the batch before it was
    /// committed, used in turn.
    pub stale: Vec<bool>,
}

/// Scenarios of at most so many events, not counting copies.
pub fn scenarios(rules: &'static [Version], events: usize) -> impl Strategy<Value = Scenario> {
    let written = |most| vec((spec(), any::<u8>(), any::<u8>()), 1..=most);
    let copies = vec((any::<Index>(), any::<u8>(), any::<u8>()), 0..events / 2);
    let kinds = any::<[Index; 2]>();
    let messages = (kinds, written(events), copies).prop_map(move |(kinds, specs, copies)| {
        let copies = copies.into_iter().map(|(of, style, partition)| (of.get(&specs).0.clone(), style, partition));
        let all: Vec<_> = specs.iter().cloned().chain(copies.collect::<Vec<_>>()).collect();
        let message = |(spec, style, partition): &(Spec, u8, u8)| Arriving {
            text: spec.text(rules, &kinds, *style),
            partition: *partition,
        };
        all.iter().map(message).collect::<Vec<_>>()
    });
    let orders = messages.prop_flat_map(|all| (Just(all.clone()).prop_shuffle(), Just(all).prop_shuffle()));
    (orders, vec(1..8usize, 1..6), vec(any::<bool>(), 1..6)).prop_map(|((one, other), batches, stale)| Scenario {
        one,
        other,
        batches,
        stale,
    })
}

fn spec() -> impl Strategy<Value = Spec> {
    let values = prop::array::uniform5((0..6usize, any::<bool>()));
    (0..2usize, any::<Index>(), 0..PATHS.len(), 0..TIMES.len(), values)
        .prop_map(|(kind, state, path, time, values)| Spec { kind, state, path, time, values })
}

impl Spec {
    fn text(&self, rules: &'static [Version], kinds: &[Index; 2], style: u8) -> String {
        let time: Timestamp = TIMES[self.time].parse().unwrap();
        let kind = kinds[self.kind].get(version_at(rules, time).kinds);
        let state = self.state.get(kind.states);
        let on = |bit: u8| style & (1 << bit) != 0;
        let mut data = self.data(kind, state);
        let mut members = vec![
            ("type", format!("\"{}.{}\"", kind.name, state.name)),
            ("resource", Value::from(PATHS[self.path]).to_string()),
            ("updatedAt", format!("\"{}\"", time_text(time, on(0), on(1)))),
        ];
        if on(2) {
            members.push(("source", "\"eu-2\"".to_owned()));
        }
        if on(3) {
            data.insert(0, ("note".to_owned(), "{\"amount\":null}".to_owned()));
        }
        if on(4) {
            data.reverse();
            members.reverse();
        }
        let space = if on(5) { " \n\t" } else { "" };
        members.insert(if on(6) { 0 } else { members.len() }, ("data", object(&data, space)));
        let members: Vec<_> = members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let text = object(&members, space);
        // The same letter, escaped.
        if on(7) { text.replace("\"stripe", "\"\\u0073tripe") } else { text }
    }

    fn data(&self, kind: &Kind, state: &State) -> Vec<(String, String)> {
        let mut data = Vec::new();
        for (index, (field, is)) in kind.fields.iter().enumerate() {
            let (value, mut wanted) = self.values[index % self.values.len()];
            if kind.name == "journal" {
                // Its lines take the currency that stands beside them.
                wanted = state.name == "posted" || self.values[0].1;
            }
            let named = state.position.iter().flatten().any(|named| named == field);
            if *is == Is::Account || named || wanted {
                data.push(((*field).to_owned(), self.value(*is, value + index)));
            }
        }
        if kind.name == "journal" {
            data.push(("author".to_owned(), format!("\"author {}\"", self.values[2].0)));
            data.push(("reason".to_owned(), "\"because\\n\"".to_owned()));
        }
        data
    }

    fn value(&self, is: Is, pick: usize) -> String {
        match is {
            Is::Account => Value::from(of(&NAMES, pick)).to_string(),
            Is::Amount => of(&AMOUNTS, pick).to_string(),
            Is::Currency => format!("\"{}\"", of(&CURRENCIES, pick)),
            Is::Asset => format!("\"{}\"", of(&ASSETS, pick)),
            Is::Lines => {
                let line = |(index, (value, own)): (usize, &(usize, bool))| {
                    let unit = match (own, value % 2) {
                        (false, _) => String::new(),
                        (true, 0) => format!(",\"currency\":\"{}\"", of(&CURRENCIES, *value)),
                        (true, _) => format!(",\"asset\":\"{}\"", of(&ASSETS, *value / 2)),
                    };
                    let [debit, credit] = [of(&JOURNAL_ACCOUNTS, *value), of(&JOURNAL_ACCOUNTS, value + index)];
                    let amount = of(&AMOUNTS, *value + index);
                    format!("{{\"debit\":\"{debit}\",\"credit\":\"{credit}\",\"amount\":{amount}{unit}}}")
                };
                let lines: Vec<String> = self.values.iter().enumerate().take(1 + pick % 5).map(line).collect();
                format!("[{}]", lines.join(","))
            }
        }
    }
}

fn of<T: Copy>(list: &[T], pick: usize) -> T {
    list[pick % list.len()]
}

/// The same microsecond, perhaps in another zone, perhaps with digits that are cut.
fn time_text(time: Timestamp, elsewhere: bool, finer: bool) -> String {
    let (hours, zone) = if elsewhere { (2, "+02:00") } else { (0, "Z") };
    let local = Offset::constant(hours).to_datetime(time);
    format!("{local:.6}{}{zone}", if finer { "999" } else { "" })
}

fn object(members: &[(String, String)], space: &str) -> String {
    let members: Vec<String> =
        members.iter().map(|(name, value)| format!("{space}\"{name}\":{space}{value}")).collect();
    format!("{{{}{space}}}", members.join(","))
}
