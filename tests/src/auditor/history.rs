//! One resource's history, event by event: what an arrival is, given what was accepted
//! before it. Kept as naive as the design says it.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::records::{At, Pairs};

/// What is compared between events of one resource: rank, updatedAt, place in the list of
/// states.
pub type Standing = (u16, i64, usize);

/// A message that brought an event of this resource, and what was recorded of it.
pub struct Arrival {
    pub at: At,
    pub letter: char,
    pub id: String,
    pub fingerprint: String,
    pub standing: Standing,
    pub state: String,
    /// Unknown where the message is gone from the topic.
    pub position: Option<Pairs>,
    /// What the rules read of it; unknown likewise.
    pub facts: Option<Value>,
    /// Of its postings; empty if it has none.
    pub posted: Pairs,
    pub incidents: Vec<String>,
    /// Of its dedup row: when the state was that it displaced.
    pub previous_at: Option<i64>,
}

/// What is known of a resource at one point of the history.
#[derive(Default)]
pub struct History {
    /// For each event id the fingerprints, in the order of their coming.
    known: BTreeMap<String, Vec<String>>,
    pub held: Option<Held>,
    /// How often the state has changed at most; and how many of these changes may have been
    /// none.
    pub revision: i64,
    pub unsure: i64,
}

#[derive(Debug)]
pub struct Held {
    pub standing: Standing,
    pub state: String,
    pub facts: Option<Value>,
    position: Option<Pairs>,
}

/// What an arrival is.
enum Verdict {
    Duplicate,
    Superseded,
    /// It is not, or is no more, the state.
    Conflict,
    /// It becomes the state; with the letter of how it says so.
    Becomes(Option<char>),
}

impl History {
    /// Settles what one transaction brought, each stream's arrivals in the order of their
    /// offsets. Between the streams any order will do that explains all, and if there is
    /// one, this finds it: what leaves the state alone is explained from some point on and
    /// then for good, and what changes it came in ascending order, so of those the least
    /// is the next. An error names an arrival that no order explains.
    ///
    /// A conflict that moves no money is the same whether it became the state for a moment
    /// or came behind what took its place: then the number of changes is not sure.
    pub fn settle(&mut self, mut streams: BTreeMap<i64, VecDeque<Arrival>>) -> Result<(), (At, String)> {
        loop {
            streams.retain(|_, arrivals| !arrivals.is_empty());
            let heads = || streams.iter().filter_map(|(stream, arrivals)| Some((*stream, arrivals.front()?)));
            let Some((first, _)) = heads().next() else { return Ok(()) };
            let mut next: Option<(bool, Standing, i64)> = None;
            for (stream, arrival) in heads() {
                if self.explain(arrival).is_ok() {
                    let changes = matches!(self.verdict(arrival), Verdict::Becomes(_));
                    let candidate = (changes, if changes { arrival.standing } else { (0, 0, 0) }, stream);
                    next = Some(next.map_or(candidate, |best| best.min(candidate)));
                }
            }
            let stream = next.map_or(first, |(_, _, stream)| stream);
            let Some(arrival) = streams.get_mut(&stream).and_then(VecDeque::pop_front) else { return Ok(()) };
            self.explain(&arrival).map_err(|why| (arrival.at, why))?;
            let among_others = streams.iter().any(|(other, arrivals)| *other != stream && !arrivals.is_empty());
            let still = matches!(self.verdict(&arrival), Verdict::Becomes(Some('C'))) && arrival.posted.is_empty();
            self.unsure += i64::from(among_others && still);
            self.accept(arrival);
        }
    }

    fn verdict(&self, arrival: &Arrival) -> Verdict {
        let held = self.held.as_ref().map(|held| held.standing);
        match self.known.get(&arrival.id) {
            Some(known) if known.contains(&arrival.fingerprint) => Verdict::Duplicate,
            Some(known) => {
                let stands = held == Some(arrival.standing) && known.iter().all(|other| arrival.fingerprint > *other);
                if stands { Verdict::Becomes(Some('C')) } else { Verdict::Conflict }
            }
            None if held.is_none_or(|held| arrival.standing > held) => {
                Verdict::Becomes(self.difference(arrival).map(|moved| if moved.is_empty() { 'N' } else { 'P' }))
            }
            None => Verdict::Superseded,
        }
    }

    /// position(new) − position(old); `None` if one of them is not known.
    fn difference(&self, arrival: &Arrival) -> Option<Pairs> {
        let mut difference = arrival.position.clone()?;
        if let Some(held) = &self.held {
            for (pair, amount) in held.position.as_ref()? {
                *difference.entry(pair.clone()).or_default() -= amount;
            }
        }
        difference.retain(|_, amount| *amount != 0);
        Some(difference)
    }

    /// Whether what was recorded of an arrival is right now; if not, why.
    fn explain(&self, arrival: &Arrival) -> Result<(), String> {
        let Arrival { letter, posted, .. } = arrival;
        let told = |expected: &str, why: &str| Err(format!("recorded as {letter}, but it is {expected}: {why}"));
        let verdict = self.verdict(arrival);
        let expected = match verdict {
            Verdict::Duplicate => 'D',
            Verdict::Superseded => 'S',
            Verdict::Conflict | Verdict::Becomes(Some('C')) => 'C',
            Verdict::Becomes(Some(letter)) => letter,
            // Its postings say which of the two it is.
            Verdict::Becomes(None) => {
                if posted.is_empty() {
                    'N'
                } else {
                    'P'
                }
            }
        };
        if *letter != expected {
            let held = self.held.as_ref().map_or_else(|| "nothing".to_owned(), |held| held.state.clone());
            return match expected {
                'D' => told("D", "its id and content were accepted before it"),
                'C' => told("C", "its id was accepted before it with another content"),
                'S' => told("S", &format!("{held} is greater and came before it, and its id is new")),
                other => told(&other.to_string(), &format!("its id is new, and it is greater than {held}")),
            };
        }
        let expected = match verdict {
            Verdict::Becomes(_) => self.difference(arrival),
            _ => Some(Pairs::new()),
        };
        if expected.as_ref().is_some_and(|expected| expected != posted) {
            let expected = expected.unwrap_or_default();
            return Err(format!("its postings move {posted:?}; position(new) - position(old) is {expected:?}"));
        }
        if let Verdict::Becomes(Some('P' | 'N') | None) | Verdict::Superseded = verdict {
            let displaced = self.held.as_ref().filter(|_| !matches!(verdict, Verdict::Superseded));
            let displaced = displaced.map(|held| held.standing.1);
            if arrival.previous_at != displaced {
                return Err(format!("its previous_at is {:?}; it displaced {displaced:?}", arrival.previous_at));
            }
        }
        self.explain_incidents(arrival)
    }

    /// Whether a superseded event was a regression is judged against the state as it was
    /// read, which another transaction may just have moved: only those are not looked at.
    fn explain_incidents(&self, arrival: &Arrival) -> Result<(), String> {
        let mut expected = Vec::new();
        match (self.verdict(arrival), &self.held) {
            (Verdict::Superseded, _) => return Ok(()),
            (Verdict::Conflict | Verdict::Becomes(Some('C')), _) => expected.push("conflict"),
            (Verdict::Becomes(_), Some(held)) => {
                if held.standing.0 < arrival.standing.0 && held.standing.1 > arrival.standing.1 {
                    expected.push("regression");
                }
                let Some(moved) = self.difference(arrival) else { return Ok(()) };
                if held.state == arrival.state && !moved.is_empty() {
                    expected.push("restatement");
                }
            }
            (Verdict::Duplicate | Verdict::Becomes(_), _) => {}
        }
        if arrival.incidents == expected {
            return Ok(());
        }
        Err(format!("its incidents are {:?}, and should be {expected:?}", arrival.incidents))
    }

    fn accept(&mut self, arrival: Arrival) {
        if let Verdict::Becomes(_) = self.verdict(&arrival) {
            self.revision += 1;
            let Arrival { standing, state, facts, position, .. } = arrival;
            self.held = Some(Held { standing, state, facts, position });
        }
        let known = self.known.entry(arrival.id).or_default();
        if !known.contains(&arrival.fingerprint) {
            known.push(arrival.fingerprint);
        }
    }
}
