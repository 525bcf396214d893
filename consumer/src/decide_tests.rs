//! One decision at a time. That every order of arrival ends alike is tested against
//! an independent model in tests/src/model_tests.rs.

use super::*;
use postonce_schema::{Decoder, Kinds, Message as Raw, POSITIONS_TOML, StreamId};

fn decoder() -> Decoder {
    let mut decoder = Decoder::new(Rules::parse(POSITIONS_TOML).unwrap());
    decoder.kinds = Kinds::All;
    decoder
}

/// A payment of the resource `r` on a day of January 2026.
fn payment(state: &str, day: u8, amount: u64) -> String {
    format!(
        r#"{{"type":"payment.{state}","resource":"r","updatedAt":"2026-01-{day:02}T00:00:00Z","data":{{"provider":"p","merchant":"m","amount":{amount},"fee":0,"currency":"EUR"}}}}"#
    )
}

/// What has been decided, in owned terms.
#[derive(Debug, Default, PartialEq)]
struct Told {
    /// A letter for each arrival.
    outcomes: String,
    /// (offset, line, signed amount on the provider's account)
    postings: Vec<(i64, i16, i64)>,
    /// Letters of the dedup rows.
    rows: String,
    /// The day of the state that each of these displaced; 0 where it displaced none.
    displaced: Vec<u8>,
    conflicts: usize,
    incidents: Vec<(IncidentCode, i64)>,
    /// read as, revision, offset of the event that is the state
    change: Option<(Option<i64>, i64, i64)>,
}

/// Decides on events at the offsets 0, 1, … against a held state (revision, event) and
/// the events that are known.
fn told(events: &[String], held: Option<(i64, &String)>, known: &[&String]) -> Told {
    let decoder = decoder();
    let event = |text| decoder.decode(Raw { value: Some(str::as_bytes(text)), headers: &[], timestamp: None }).unwrap();
    let decoded: Vec<(Message<'_>, Event<'_>)> = (0..)
        .zip(events)
        .map(|(offset, text)| {
            let at = At { stream: StreamId::from_i64(1), offset };
            let message = Message {
                at,
                key: None,
                value: Some(text.as_bytes()),
                headers: Vec::new(),
                timestamp: None,
                leader_epoch: None,
            };
            (message, event(text))
        })
        .collect();
    let arrivals: Vec<Arrival<'_, '_>> = decoded.iter().map(|(message, event)| Arrival { message, event }).collect();
    let held = held.map(|(revision, text)| {
        let Event { version, kind, state, updated_at, facts, resource_id, .. } = event(text);
        (resource_id, Held { revision, version, kind, state, updated_at, facts })
    });
    let mut fingerprints = Known::new();
    for text in known {
        let event = event(text);
        fingerprints
            .entry(event.id)
            .or_default()
            .push(Content { fingerprint: event.fingerprint, came: Came::Before(None) });
    }
    let decision = decide(&arrivals, held.into_iter().collect(), fingerprints);
    let letters = |outcomes: &mut dyn Iterator<Item = Outcome>| outcomes.map(|one| char::from(one.byte())).collect();
    assert!(decision.resources.len() <= 1, "all events are of one resource");
    Told {
        outcomes: letters(&mut decision.outcomes.iter().map(|(_, outcome)| *outcome)),
        postings: decision
            .postings
            .iter()
            .map(|posting| (posting.at.offset, posting.line, on_provider(posting)))
            .collect(),
        rows: letters(&mut decision.events.iter().map(|new| new.outcome)),
        displaced: decision.events.iter().map(|new| new.previous_at.map_or(0, day)).collect(),
        conflicts: decision.conflicts.len(),
        incidents: decision.incidents.iter().map(|one| (one.code, one.arrival.message.at.offset)).collect(),
        change: decision.resources.values().next().map(|one| (one.read_as, one.revision, one.to.message.at.offset)),
    }
}

fn day(time: Timestamp) -> u8 {
    time.to_string()[8..10].parse().unwrap()
}

fn on_provider(posting: &Posting) -> i64 {
    let PostingAmount { debit, credit, amount } = &posting.posting;
    assert!(debit.path.as_str() == "assets:psp:p" || credit.path.as_str() == "assets:psp:p");
    if debit.path.as_str() == "assets:psp:p" { *amount } else { -amount }
}

#[test]
fn each_event_of_a_batch_posts_its_own_difference() {
    let events = [payment("succeeded", 1, 100), payment("succeeded", 2, 120), payment("reversed", 3, 0)];
    let told = told(&events, None, &[]);
    assert_eq!(told.outcomes, "PPP");
    assert_eq!(told.displaced, [0, 1, 2], "the first displaces nothing");
    assert_eq!(told.postings, [(0, 0, 100), (1, 0, 20), (2, 0, -120)]);
    assert_eq!(told.change, Some((None, 3, 2)));
    assert_eq!(told.incidents, [(IncidentCode::Restatement, 1)]);
}

#[test]
fn what_was_read_is_what_the_change_compares() {
    let held = payment("authorized", 1, 0);
    let events = [payment("succeeded", 2, 5), payment("reversed", 3, 0)];
    let told = told(&events, Some((7, &held)), &[&held]);
    assert_eq!(told.change, Some((Some(7), 9, 1)), "the revision that was read, not one made in memory");
    assert_eq!(told.displaced, [1, 2], "the state that was read, then the one made in memory");
}

#[test]
fn what_is_not_greater_changes_nothing() {
    let held = payment("succeeded", 5, 100);
    let events = [payment("created", 4, 1), payment("succeeded", 4, 3), payment("cancelled", 4, 2)];
    let told = told(&events, Some((1, &held)), &[&held]);
    let (outcomes, rows) = ("SSS".to_owned(), "SSS".to_owned());
    let nothing = Told { outcomes, rows, displaced: vec![0, 0, 0], ..Told::default() };
    assert_eq!(told, nothing);
}

#[test]
fn a_lower_state_that_is_later_is_told_in_both_orders() {
    let (paid, failed) = (payment("succeeded", 1, 100), payment("failed", 2, 0));
    assert_eq!(
        told(std::slice::from_ref(&failed), Some((1, &paid)), &[&paid]).incidents,
        [(IncidentCode::Regression, 0)]
    );
    let other = told(&[paid], Some((1, &failed)), &[&failed]);
    assert_eq!((other.outcomes.as_str(), other.incidents.as_slice()), ("P", &[(IncidentCode::Regression, 0)][..]));
}

#[test]
fn the_same_state_with_the_same_money_is_no_restatement() {
    let held = payment("succeeded", 1, 100);
    let told = told(&[payment("succeeded", 2, 100)], Some((1, &held)), &[&held]);
    assert_eq!((told.outcomes.as_str(), told.postings.len(), told.incidents.len()), ("N", 0, 0));
    assert_eq!(told.change, Some((Some(1), 2, 0)), "the time of the state has moved all the same");
}

#[test]
fn what_is_known_is_a_duplicate_whether_from_the_tables_or_from_the_batch() {
    let event = payment("succeeded", 1, 100);
    let known = told(&[event.clone(), event.clone()], Some((1, &event)), &[&event]);
    assert_eq!(known, Told { outcomes: "DD".to_owned(), ..Told::default() });
    let new = told(&[event.clone(), event.clone(), event], None, &[]);
    assert_eq!((new.outcomes.as_str(), new.rows.as_str(), new.postings.len()), ("PDD", "P", 1));
}

#[test]
fn of_two_contents_the_greater_fingerprint_stands() {
    let decoder = decoder();
    let mut contents = [payment("succeeded", 1, 100), payment("succeeded", 1, 130)];
    contents.sort_by_key(|text| {
        decoder.decode(Raw { value: Some(text.as_bytes()), headers: &[], timestamp: None }).unwrap().fingerprint
    });
    let [lesser, greater] = contents;
    let stays = told(&[lesser.clone(), greater.clone()], Some((3, &greater)), &[&greater]);
    assert_eq!((stays.outcomes.as_str(), stays.conflicts, stays.change), ("CD", 1, None));
    assert_eq!((stays.rows.as_str(), stays.postings.len()), ("", 0));
    assert_eq!(stays.incidents, [(IncidentCode::Conflict, 0)]);
    let moves = told(&[greater.clone(), lesser.clone()], Some((3, &lesser)), &[&lesser]);
    assert_eq!((moves.outcomes.as_str(), moves.conflicts, moves.change), ("CD", 1, Some((Some(3), 4, 0))));
    assert_eq!((moves.rows.as_str(), moves.postings.len()), ("", 1), "a conflict has no dedup row of its own");
    // About a state that the resource has left, it is kept and moves nothing.
    let left = payment("reversed", 2, 0);
    let past = told(&[greater], Some((4, &left)), &[&left, &lesser]);
    assert_eq!((past.outcomes.as_str(), past.conflicts, past.change), ("C", 1, None));
}

#[test]
fn only_what_is_not_greater_is_looked_up() {
    let decoder = decoder();
    let texts =
        [payment("succeeded", 2, 1), payment("succeeded", 3, 1), payment("failed", 9, 1), payment("reversed", 2, 1)];
    let decoded: Vec<Event<'_>> = texts
        .iter()
        .map(|text| decoder.decode(Raw { value: Some(text.as_bytes()), headers: &[], timestamp: None }).unwrap())
        .collect();
    let at = At { stream: StreamId::from_i64(1), offset: 0 };
    let message = Message { at, key: None, value: None, headers: Vec::new(), timestamp: None, leader_epoch: None };
    let arrivals: Vec<Arrival<'_, '_>> = decoded.iter().map(|event| Arrival { message: &message, event }).collect();
    assert_eq!(not_greater(&arrivals, &HashMap::new()).count(), 0, "a resource that is absent knows no event");
    let first = &decoded[0];
    let held = Held {
        revision: 1,
        version: first.version,
        kind: first.kind,
        state: first.state,
        updated_at: first.updated_at,
        facts: first.facts.clone(),
    };
    let held = HashMap::from([(first.resource_id, held)]);
    let looked_up: Vec<EventId> = not_greater(&arrivals, &held).map(|event| event.id).collect();
    // Equal in rank and time, `reversed` has the later place in the list.
    assert_eq!(looked_up, [decoded[0].id, decoded[2].id]);
}

#[test]
fn a_state_that_the_rules_cannot_read_is_damage_with_a_name() {
    let rules = Rules::parse(POSITIONS_TOML).unwrap();
    let resource = ResourceId::new("payment", "r");
    let read = |names, facts| Held::from_names(&rules, resource, names, (1, Timestamp::EPOCH), facts);
    let facts = r#"{"provider":"p","merchant":"m","amount":5,"currency":"EUR","fee":0}"#;
    assert!(read(("payment", "succeeded", 1), facts).is_ok());
    for (names, facts, why) in [
        (("payment", "succeeded", 2), facts, "no such version"),
        (("payment", "won", 1), facts, "no such state"),
        (("lottery", "won", 1), facts, "no such state"),
        (("payment", "succeeded", 1), "[]", "not a JSON object"),
        (("payment", "succeeded", 1), r#"{"amount":-5}"#, "is not an amount"),
    ] {
        let told = read(names, facts).unwrap_err().to_string();
        assert!(told.contains(why) && told.contains(names.1), "{told}");
    }
}
