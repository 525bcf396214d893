//! Resources that are looked at one by one: by their facts, by their events, and by the
//! postings of those events.

use super::VerifyError;
use super::copy::copy_out;
use super::report::{Check, Finding, Findings};
use super::resources::Resource;
use super::snapshot::Cut;
use super::tables::{Event, Read, Table, posting};
use crate::decide::UnreadableState;
use crate::read::snapshot;
use crate::rows::Posted;
use postonce_schema::{AccountId, EventId, Fingerprint, ResourceId, Rules};
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// So many of a resource's events are named.
const MOST_EVENTS: usize = 5;
/// Places of one stream that are closer to each other are read as one range.
const NEAR: i64 = 1_000;
/// With more ranges than this, and than the table has of so many pages, it is cheaper to
/// read all postings once: the index finds 32 pages at a time.
const MOST_RANGES: usize = 500;
const PAGES_OF_A_RANGE: usize = 64;
/// Ranges in one statement.
const RANGES: usize = 50;

pub const STRANGE_STATE: &str = "the resource is in a state that none of its events has brought with this content: \
                                 its row was edited, or that of the event";

/// A resource with both of its sides.
#[derive(Default)]
struct Suspect {
    name: Option<String>,
    revision: i64,
    changes: i64,
    conflicts: i64,
    /// The event that it says to be in the state of.
    state: Option<Result<(EventId, Fingerprint), UnreadableState>>,
    /// What it holds by its facts, and what its postings have moved, for each account.
    accounts: BTreeMap<AccountId, (i128, i128)>,
    events: Vec<(i64, i64, EventId, Fingerprint)>,
}

/// Some resources, as each was in a snapshot of its own.
#[derive(Default)]
pub struct Suspects {
    resources: HashMap<ResourceId, Suspect>,
    /// Where their events stand that may have posted.
    places: BTreeMap<(i64, i64), ResourceId>,
}

impl Suspects {
    /// Reads the resources of this condition, with all of their events, in one snapshot.
    pub async fn read(
        &mut self,
        connection: &mut PgConnection,
        rules: &Rules,
        condition: &str,
    ) -> Result<(), VerifyError> {
        let mut snapshot = snapshot(connection).await?;
        let cut = Cut::read(&mut snapshot).await?;
        let select = format!("{} WHERE {condition}", Resource::COLUMNS);
        copy_out(&mut snapshot, &select, |mut row| {
            self.resource(&Resource::read(&mut row)?, rules);
            Ok::<(), VerifyError>(())
        })
        .await?;
        for table in [Table::Events, Table::Conflicts] {
            copy_out(&mut snapshot, &format!("{} WHERE {condition}", table.select()), |mut row| {
                // What stands behind the cut is no event of this snapshot, but a stray row.
                if let Read::Event(stream, event) = table.read(&mut row)?
                    && cut.covers(stream, event.offset)
                {
                    self.event(stream, &event);
                }
                Ok::<(), VerifyError>(())
            })
            .await?;
        }
        snapshot.commit().await?;
        Ok(())
    }

    fn resource(&mut self, resource: &Resource<'_>, rules: &Rules) {
        let suspect = self.resources.entry(resource.id).or_default();
        (suspect.name, suspect.revision) = (Some(resource.name()), resource.revision);
        let state = resource.state(rules);
        for posting in state.iter().flat_map(|state| &state.position) {
            let amount = i128::from(posting.amount);
            suspect.accounts.entry(posting.debit.id).or_default().0 += amount;
            suspect.accounts.entry(posting.credit.id).or_default().0 -= amount;
        }
        suspect.state = Some(state.map(|state| (state.event, state.fingerprint)));
    }

    fn event(&mut self, stream: i64, event: &Event) {
        let suspect = self.resources.entry(event.resource).or_default();
        suspect.changes += i64::from(matches!(event.outcome, b'P' | b'N'));
        suspect.conflicts += i64::from(event.outcome == b'C');
        suspect.events.push((stream, event.offset, event.id, event.fingerprint));
        if event.outcome != b'N' {
            self.places.insert((stream, event.offset), event.resource);
        }
    }

    /// Reads the postings of all of their events: those rows never change again.
    pub async fn read_postings(&mut self, connection: &mut PgConnection) -> Result<(), VerifyError> {
        let ranges = self.ranges();
        let whole = Table::Postings.whole(connection).await?;
        let mut scan = if ranges.len() <= MOST_RANGES.max(whole.pages() / PAGES_OF_A_RANGE) {
            let conditions = ranges.chunks(RANGES).map(|ranges| ranges.join(" OR "));
            Table::Postings.offsets(conditions)
        } else {
            whole
        };
        while let Some(select) = scan.next_select() {
            copy_out(connection, &select, |mut row| {
                let (stream, posting) = posting(&mut row)?;
                self.posting(stream, &posting);
                Ok::<(), VerifyError>(())
            })
            .await?;
        }
        scan.finish(connection).await
    }

    fn posting(&mut self, stream: i64, posting: &Posted) {
        let resource = self.places.get(&(stream, posting.offset));
        let Some(suspect) = resource.and_then(|id| self.resources.get_mut(id)) else { return };
        let amount = i128::from(posting.amount);
        let (_, debit) = suspect.accounts.entry(posting.debit).or_default();
        *debit = debit.wrapping_add(amount);
        let (_, credit) = suspect.accounts.entry(posting.credit).or_default();
        *credit = credit.wrapping_sub(amount);
    }

    /// The places as conditions, neighbours together.
    fn ranges(&self) -> Vec<String> {
        let mut ranges: Vec<(i64, i64, i64)> = Vec::new();
        for (stream, offset) in self.places.keys() {
            match ranges.last_mut() {
                Some((same, _, last)) if same == stream && offset - *last <= NEAR => *last = *offset,
                _ => ranges.push((*stream, *offset, *offset)),
            }
        }
        let condition = |(stream, first, last)| {
            format!("(stream = {stream} AND message_offset >= {first} AND message_offset <= {last})")
        };
        ranges.into_iter().map(condition).collect()
    }

    /// Judges each by itself.
    pub fn judge(self, findings: &mut Findings) {
        let mut resources: Vec<(ResourceId, Suspect)> = self.resources.into_iter().collect();
        resources.sort_unstable_by_key(|(id, _)| *id);
        resources.iter().for_each(|(id, suspect)| suspect.judge(*id, findings));
    }
}

impl Suspect {
    fn judge(&self, id: ResourceId, findings: &mut Findings) {
        for (account, (held, posted)) in self.accounts.iter().filter(|(_, (held, posted))| held != posted) {
            let what = format!("the resource holds by its facts what its postings have not moved{}", self.told());
            findings.add(Check::Positions, self.finding(id, what).account(*account).instead(held, posted));
        }
        let by_conflict = self.revision - self.changes;
        if self.name.is_none() && !self.events.is_empty() {
            let what = "the resource's row is gone; it has events".to_owned();
            findings.add(Check::Resources, self.finding(id, what));
        } else if !(0..=self.conflicts).contains(&by_conflict) {
            let what = "the resource's revision is not the number of its changes".to_owned();
            findings.add(Check::Resources, self.finding(id, what).instead(self.changes, self.revision));
        }
    }

    /// Whether the state is one of the events, or cannot even be read. Only where no pass
    /// over all events answers that.
    fn judge_state(&self, id: ResourceId, findings: &mut Findings) {
        match &self.state {
            Some(Err(error)) => findings.add(Check::Events, self.finding(id, error.to_string())),
            Some(Ok(state)) if self.events.iter().all(|(_, _, event, content)| (*event, *content) != *state) => {
                findings.add(Check::Events, self.finding(id, STRANGE_STATE.to_owned()).event(state.0));
            }
            _ => {}
        }
    }

    fn finding(&self, id: ResourceId, what: String) -> Finding {
        let mut finding = Finding::new(what).resource(id);
        finding.resource.clone_from(&self.name);
        match self.events.last() {
            Some((stream, offset, event, _)) => finding.at(*stream, *offset).event(*event),
            None => finding,
        }
    }

    /// The resource's events, for a person to look at.
    fn told(&self) -> String {
        let mut text = String::new();
        for (stream, offset, event, _) in self.events.iter().rev().take(MOST_EVENTS) {
            let separator = if text.is_empty() { "; its events: " } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(text, "{separator}{event} at offset {offset} of stream {stream}");
        }
        text
    }
}

impl Suspects {
    /// Judges also whether each is in the state of one of its events.
    pub fn judge_states(&self, findings: &mut Findings) {
        let mut resources: Vec<(&ResourceId, &Suspect)> = self.resources.iter().collect();
        resources.sort_unstable_by_key(|(id, _)| **id);
        resources.into_iter().for_each(|(id, suspect)| suspect.judge_state(*id, findings));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_read_together() {
        let mut suspects = Suspects::default();
        for (stream, offset) in [(1, 5), (1, 900), (1, 1901), (2, 1902)] {
            suspects.places.insert((stream, offset), ResourceId::from_bytes([0; 16]));
        }
        let range = |stream, first, last| {
            format!("(stream = {stream} AND message_offset >= {first} AND message_offset <= {last})")
        };
        assert_eq!(suspects.ranges(), [range(1, 5, 900), range(1, 1901, 1901), range(2, 1902, 1902)]);
    }
}
