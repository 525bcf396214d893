//! Every order of arrival, split over any partitions and batches, gives the books of
//! the model: through the ledger's own decoder and decisions, with tables in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postonce_consumer::decide::{Arrival, Content, Decision, Held, Known, NewEvent, decide, not_greater};
use postonce_consumer::distance::Came;
use postonce_consumer::message::{At, Message, Outcome};
use postonce_schema::{
    Decoder, Event, EventId, Fingerprint, Kinds, Message as Raw, POSITIONS_TOML, ResourceId, Rules, StreamId, Timestamp,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError};

use super::*;
use crate::scenario::{Arriving, Scenario, scenarios};

const SHIPPED_ALONE: &[Version] = &[SHIPPED];

fn decoder(toml: &str) -> Decoder {
    let mut decoder = Decoder::new(Rules::parse(toml).unwrap());
    decoder.kinds = Kinds::All;
    decoder
}

fn config(cases: u32) -> Config {
    Config { failure_persistence: None, ..Config::with_cases(cases) }
}

proptest! {
    #![proptest_config(config(1_024))]

    #[test]
    fn every_order_gives_the_books_of_the_model(scenario in scenarios(SHIPPED_ALONE, 40)) {
        compare(SHIPPED_ALONE, &decoder(POSITIONS_TOML), &scenario)?;
    }

    #[test]
    fn every_order_under_three_versions_gives_the_books_of_the_model(scenario in scenarios(THREE_VERSIONS, 40)) {
        compare(THREE_VERSIONS, &decoder(&format!("{POSITIONS_TOML}{LATER_VERSIONS_TOML}")), &scenario)?;
    }
}

fn compare(rules: &'static [Version], decoder: &Decoder, scenario: &Scenario) -> Result<(), TestCaseError> {
    let model = books(rules, scenario.one.iter().map(|message| message.text.as_str()));
    for order in [&scenario.one, &scenario.other] {
        let tables = run(decoder, order, &scenario.batches, &scenario.stale);
        prop_assert_eq!(&tables.books(), &model);
        tables.check_outcomes(order.len())?;
        tables.check_changes()?;
    }
    Ok(())
}

/// What the database holds, as far as decisions read and write it.
#[derive(Default)]
struct Tables {
    resources: HashMap<ResourceId, Row>,
    events: BTreeMap<(Timestamp, EventId), (Fingerprint, Outcome)>,
    conflicts: BTreeSet<(EventId, Fingerprint)>,
    /// updatedAt and previous_at of the events that became a resource's state.
    changes: HashMap<ResourceId, Vec<(Timestamp, Option<Timestamp>)>>,
    /// Amounts by resource: debits positive.
    postings: Vec<(ResourceId, Account, i128)>,
    outcomes: BTreeMap<At, Outcome>,
    /// Batches that had to be decided anew.
    races: usize,
}

/// A row of `resources`: names and JSON, no Rust types of the rules.
struct Row {
    kind: String,
    path: String,
    state: String,
    version: i32,
    revision: i64,
    updated_at: Timestamp,
    facts: String,
}

/// Another batch has changed what this one has read.
#[derive(Debug, PartialEq)]
struct Race;

/// Applies the messages in this order, in batches. One batch in two or so has read its
/// rows before the batch before it was committed, as a second worker would.
fn run(decoder: &Decoder, order: &[Arriving], sizes: &[usize], stale: &[bool]) -> Tables {
    let mut tables = Tables::default();
    let mut next = [0i64; 4];
    let decoded: Vec<(Message<'_>, Event<'_>)> = order
        .iter()
        .map(|Arriving { text, partition }| {
            let partition = partition % 4;
            let offset = next[usize::from(partition)];
            next[usize::from(partition)] += 1;
            let at = At { stream: StreamId::from_i64(i64::from(partition)), offset };
            let value = Some(text.as_bytes());
            let event = decoder.decode(Raw { value, headers: &[], timestamp: None });
            (
                Message { at, key: None, value, headers: Vec::new(), timestamp: None, leader_epoch: None },
                event.expect(text),
            )
        })
        .collect();
    let arrivals: Vec<Arrival<'_, '_>> = decoded.iter().map(|(message, event)| Arrival { message, event }).collect();
    let mut batches = Vec::new();
    let mut rest = arrivals.as_slice();
    for size in sizes.iter().cycle() {
        let (batch, behind) = rest.split_at((*size).min(rest.len()));
        if batch.is_empty() {
            break;
        }
        batches.push(batch);
        rest = behind;
    }
    let mut waiting: Option<(&[Arrival<'_, '_>], Decision<'_, '_>)> = None;
    for (batch, stale) in batches.into_iter().zip(stale.iter().cycle()) {
        let decided = decide_on(&tables, decoder, batch);
        if let Some((before, decision)) = waiting.take() {
            commit_or_retry(&mut tables, decoder, before, decision);
        }
        if *stale {
            // Committed only after the next batch has read and decided.
            waiting = Some((batch, decided));
        } else {
            commit_or_retry(&mut tables, decoder, batch, decided);
        }
    }
    if let Some((before, decision)) = waiting {
        commit_or_retry(&mut tables, decoder, before, decision);
    }
    tables
}

fn decide_on<'b, 'a: 'b>(tables: &Tables, decoder: &'a Decoder, batch: &[Arrival<'b, 'a>]) -> Decision<'b, 'a> {
    let held = tables.read_resources(decoder, batch);
    let known = tables.look_up(not_greater(batch, &held));
    decide(batch, held, known)
}

fn commit_or_retry<'b, 'a: 'b>(
    tables: &mut Tables,
    decoder: &'a Decoder,
    batch: &[Arrival<'b, 'a>],
    decision: Decision<'b, 'a>,
) {
    if tables.commit(&decision) == Err(Race) {
        tables.races += 1;
        let again = decide_on(tables, decoder, batch);
        tables.commit(&again).expect("nobody else is at work");
    }
}

impl Tables {
    fn read_resources<'a>(&self, decoder: &'a Decoder, batch: &[Arrival<'_, 'a>]) -> HashMap<ResourceId, Held<'a>> {
        let ids: BTreeSet<ResourceId> = batch.iter().map(|arrival| arrival.event.resource_id).collect();
        let held = |id: ResourceId| {
            let row = self.resources.get(&id)?;
            let names = (row.kind.as_str(), row.state.as_str(), row.version);
            let held = Held::from_names(&decoder.rules, id, names, (row.revision, row.updated_at), &row.facts);
            Some((id, held.expect("a state that was written can be read")))
        };
        ids.into_iter().filter_map(held).collect()
    }

    fn look_up<'e, 'a: 'e>(&self, events: impl Iterator<Item = &'e Event<'a>>) -> Known {
        let mut known = Known::new();
        for event in events {
            let first = self.events.get(&(event.updated_at, event.id)).map(|(fingerprint, _)| *fingerprint);
            let others = self.conflicts.iter().filter(|(id, _)| *id == event.id).map(|(_, fingerprint)| *fingerprint);
            let content = |fingerprint| Content { fingerprint, came: Came::Before(None) };
            let all: Vec<Content> = first.into_iter().chain(others).map(content).collect();
            if !all.is_empty() {
                known.insert(event.id, all);
            }
        }
        known
    }

    /// All or nothing, under the conditions that the database enforces: unique keys,
    /// and resources as they were read.
    fn commit(&mut self, decision: &Decision<'_, '_>) -> Result<(), Race> {
        let as_read = |(id, change): (&ResourceId, &postonce_consumer::decide::Change<'_, '_>)| {
            self.resources.get(id).map(|row| row.revision) == change.read_as
        };
        let new = |new: &NewEvent<'_, '_>| {
            let event = new.arrival.event;
            !self.events.contains_key(&(event.updated_at, event.id))
        };
        let new_conflict =
            |arrival: &Arrival<'_, '_>| !self.conflicts.contains(&(arrival.event.id, arrival.event.fingerprint));
        if !decision.resources.iter().all(as_read)
            || !decision.events.iter().all(new)
            || !decision.conflicts.iter().all(new_conflict)
        {
            return Err(Race);
        }
        let mut resource_at = HashMap::new();
        for NewEvent { arrival, outcome, previous_at } in &decision.events {
            let event = arrival.event;
            match outcome {
                Outcome::Superseded => assert_eq!(*previous_at, None, "it displaces nothing"),
                _ => self.changes.entry(event.resource_id).or_default().push((event.updated_at, *previous_at)),
            }
            resource_at.insert(arrival.message.at, event.resource_id);
            let before = self.events.insert((event.updated_at, event.id), (event.fingerprint, *outcome));
            assert!(before.is_none(), "the id stands twice in one batch");
        }
        for arrival in &decision.conflicts {
            resource_at.insert(arrival.message.at, arrival.event.resource_id);
            assert!(self.conflicts.insert((arrival.event.id, arrival.event.fingerprint)), "a conflict stands twice");
        }
        for (id, change) in &decision.resources {
            let event = change.to.event;
            assert!(change.revision > change.read_as.unwrap_or(0));
            let row = Row {
                kind: event.kind.name.clone(),
                path: event.resource.to_string(),
                state: event.state.name.clone(),
                version: event.version.number,
                revision: change.revision,
                updated_at: event.updated_at,
                facts: event.facts.to_json(event.kind),
            };
            self.resources.insert(*id, row);
        }
        let mut lines: BTreeMap<At, Vec<i16>> = BTreeMap::new();
        for posting in &decision.postings {
            lines.entry(posting.at).or_default().push(posting.line);
            let (amount, debit, credit) = (posting.posting.amount, &posting.posting.debit, &posting.posting.credit);
            assert!(amount > 0 && debit.id != credit.id && debit.asset == credit.asset);
            for (account, amount) in [(debit, i128::from(amount)), (credit, -i128::from(amount))] {
                let name = (account.path.as_str().to_owned(), account.asset.to_string());
                self.postings.push((resource_at[&posting.at], name, amount));
            }
        }
        assert!(lines.values().all(|lines| lines.iter().copied().eq(0..lines.len() as i16)), "lines count from 0");
        self.outcomes.extend(decision.outcomes.iter().copied());
        Ok(())
    }

    fn books(&self) -> Books {
        let mut books = Books::default();
        for row in self.resources.values() {
            let end = Final {
                state: row.state.clone(),
                updated_at: row.updated_at.to_string(),
                rules_version: row.version,
                facts: serde_json::from_str(&row.facts).unwrap(),
                position: Balances::new(),
            };
            books.resources.insert((row.kind.clone(), row.path.clone()), end);
        }
        for (resource, account, amount) in &self.postings {
            *books.balances.entry(account.clone()).or_default() += amount;
            let row = &self.resources[resource];
            let end = books.resources.get_mut(&(row.kind.clone(), row.path.clone())).unwrap();
            *end.position.entry(account.clone()).or_default() += amount;
        }
        books.balances.retain(|_, amount| *amount != 0);
        books.resources.values_mut().for_each(|end| end.position.retain(|_, amount| *amount != 0));
        let firsts = self.events.iter().map(|((_, id), (fingerprint, _))| (*id, *fingerprint));
        for (id, fingerprint) in firsts.chain(self.conflicts.iter().copied()) {
            books.known.insert((hex(id.as_bytes()), hex(fingerprint.as_bytes())));
        }
        books
    }

    fn check_outcomes(&self, messages: usize) -> Result<(), TestCaseError> {
        let count = |wanted: &[Outcome]| self.outcomes.values().filter(|outcome| wanted.contains(outcome)).count();
        prop_assert_eq!(self.outcomes.len(), messages);
        prop_assert_eq!(count(&[Outcome::Posted, Outcome::Noted, Outcome::Superseded]), self.events.len());
        prop_assert_eq!(count(&[Outcome::Conflict]), self.conflicts.len());
        prop_assert_eq!(count(&[Outcome::Duplicate]), messages - self.events.len() - self.conflicts.len());
        Ok(())
    }
}

impl Tables {
    /// Each event that became the state says when the one before it was, in the order in
    /// which they came, and the last of them is the state.
    fn check_changes(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.changes.len(), self.resources.len());
        for (id, changes) in &self.changes {
            let before = std::iter::once(None).chain(changes.iter().map(|(updated_at, _)| Some(*updated_at)));
            let expected: Vec<_> = before.take(changes.len()).collect();
            prop_assert_eq!(expected, changes.iter().map(|(_, previous_at)| *previous_at).collect::<Vec<_>>());
            prop_assert_eq!(Some(self.resources[id].updated_at), changes.last().map(|(updated_at, _)| *updated_at));
        }
        Ok(())
    }
}

/// The scenarios are worth something only if everything that can happen happens.
#[test]
fn scenarios_bring_every_outcome_and_every_race() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let decoder = decoder(&format!("{POSITIONS_TOML}{LATER_VERSIONS_TOML}"));
    let mut seen = BTreeMap::<Outcome, usize>::new();
    let (mut versions, mut changed_often, mut races) = (BTreeSet::new(), 0, 0);
    for _ in 0..200 {
        let scenario = scenarios(THREE_VERSIONS, 40).new_tree(&mut runner).unwrap().current();
        let tables = run(&decoder, &scenario.one, &scenario.batches, &scenario.stale);
        tables.outcomes.values().for_each(|outcome| *seen.entry(*outcome).or_default() += 1);
        versions.extend(tables.resources.values().map(|row| row.version));
        changed_often += tables.resources.values().filter(|row| row.revision > 3).count();
        races += tables.races;
    }
    let accepted = [Outcome::Posted, Outcome::Noted, Outcome::Duplicate, Outcome::Superseded, Outcome::Conflict];
    for outcome in accepted {
        assert!(seen.get(&outcome).is_some_and(|count| *count > 100), "{seen:?}");
    }
    assert_eq!(versions, BTreeSet::from([1, 2, 3]));
    assert!(changed_often > 50, "resources that changed more than three times: {changed_often}");
    assert!(races > 100, "races: {races}");
    println!("{seen:?}, {changed_often} changed often, {races} races");
}

/// The design's table, number by number: a model that is wrong proves nothing.
#[test]
fn the_model_says_what_the_design_says() {
    let paid = r#"{"type":"payment.succeeded","resource":"stripe/acct_1/pi_3Nf","updatedAt":"2026-01-02T05:04:05.1234567+02:00",
                   "source":"eu-1","data":{"provider":"st ripe","merchant":"m1","amount":1000,"fee":29,"currency":"EUR"}}"#;
    let late = r#"{"type":"payment.failed","resource":"stripe/acct_1/pi_3Nf","updatedAt":"2026-02-01T00:00:00Z",
                   "data":{"provider":"st ripe","merchant":"m1"}}"#;
    let books = books(SHIPPED_ALONE, [late, paid, late]);
    let amount = |path: &str| books.balances.get(&(path.to_owned(), "EUR".to_owned())).copied();
    assert_eq!(amount("assets:psp:st%20ripe"), Some(1000));
    assert_eq!(amount("liabilities:merchant:m1"), Some(-971));
    assert_eq!(amount("income:fees"), Some(-29));
    assert_eq!((books.balances.len(), books.known.len(), books.resources.len()), (3, 2, 1));
    let end = &books.resources[&("payment".to_owned(), "stripe/acct_1/pi_3Nf".to_owned())];
    assert_eq!((end.state.as_str(), end.updated_at.as_str()), ("succeeded", "2026-01-02T03:04:05.123456Z"));
}
