//! Why an event stands or does not, told from the frozen rules in the database: no
//! rules file is needed, and none that was altered can mislead.

use postonce_schema::Timestamp;

/// How the states rank, for each version of the rules in use.
#[derive(Debug, Default)]
pub(super) struct Ranks(Vec<Version>);

#[derive(Debug)]
struct Version {
    from: Timestamp,
    kinds: Vec<String>,
    /// (type, rank), in their order.
    states: Vec<(String, u16)>,
}

/// An event as far as it competes for its resource's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contender<'a> {
    pub type_name: &'a str,
    pub updated_at: Timestamp,
}

impl Ranks {
    /// Adds a version; the earliest comes first. Lines of the canonical form that say
    /// something else are passed over.
    pub fn add(&mut self, from: Timestamp, definition: &str) {
        let kinds = definition.lines().filter_map(|line| line.strip_prefix("kind ")).map(str::to_owned).collect();
        let states = definition.lines().filter_map(|line| {
            let mut words = line.strip_prefix("state ")?.split(' ');
            let name = words.next()?;
            (words.next()? == "rank").then_some((name.to_owned(), words.next()?.parse().ok()?))
        });
        let states = states.collect();
        self.0.push(Version { from, kinds, states });
    }

    /// Every kind of any version.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = self.0.iter().flat_map(|version| &version.kinds).map(String::as_str).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    fn of(&self, event: Contender<'_>) -> Option<u16> {
        let version = self.0.iter().rev().find(|version| version.from <= event.updated_at)?;
        version.states.iter().find(|(name, _)| name == event.type_name).map(|(_, rank)| *rank)
    }

    /// Why `winner` is greater than `loser`.
    pub fn why(&self, winner: Contender<'_>, loser: Contender<'_>) -> String {
        let name = format!("{} of {}", winner.type_name, winner.updated_at);
        match (self.of(winner), self.of(loser)) {
            (Some(won), Some(lost)) if won > lost => {
                format!("{name} (rank {won}) outranks {} (rank {lost})", loser.type_name)
            }
            (Some(won), Some(lost)) if won == lost && winner.updated_at > loser.updated_at => {
                format!("{name} is later, and both have rank {won}")
            }
            (Some(won), Some(lost)) if won == lost && winner.updated_at == loser.updated_at => {
                format!("{name} has the same rank and time but comes later in the list of states")
            }
            _ => format!("{name} stands"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postonce_schema::{POSITIONS_TOML, Rules};

    fn at<'a>(type_name: &'a str, second: u8) -> Contender<'a> {
        let updated_at = Timestamp::parse(&format!("2026-01-01T00:00:{second:02}Z")).unwrap();
        Contender { type_name, updated_at }
    }

    #[test]
    fn the_reason_follows_the_order_of_events() {
        let mut ranks = Ranks::default();
        for version in Rules::parse(POSITIONS_TOML).unwrap().versions() {
            ranks.add(version.from, &version.text());
        }
        assert!(ranks.kinds().contains(&"payment") && ranks.kinds().contains(&"journal"));
        assert_eq!(
            ranks.why(at("payment.succeeded", 1), at("payment.failed", 2)),
            "payment.succeeded of 2026-01-01T00:00:01.000000Z (rank 5) outranks payment.failed (rank 4)"
        );
        assert_eq!(
            ranks.why(at("dispute.won", 3), at("dispute.lost", 2)),
            "dispute.won of 2026-01-01T00:00:03.000000Z is later, and both have rank 2"
        );
        assert!(ranks.why(at("payment.reversed", 1), at("payment.succeeded", 1)).contains("list of states"));
        assert!(ranks.why(at("other.thing", 1), at("payment.succeeded", 1)).ends_with("stands"));
    }

    #[test]
    fn each_event_is_ranked_by_the_version_of_its_time() {
        let mut ranks = Ranks::default();
        ranks.add(Timestamp::EPOCH, "version 1\nkind a\nstate a.x rank 1");
        ranks.add(at("", 5).updated_at, "version 2\nkind a\nstate a.x rank 9 lines postings");
        assert!(ranks.why(at("a.x", 5), at("a.x", 4)).contains("(rank 9) outranks a.x (rank 1)"));
    }
}
