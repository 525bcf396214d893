//! Resources that are looked at one by one: by their facts, by their events, and by the
//! postings of those events.

use super::VerifyError;
use super::copy::copy_out;
use super::report::{Check, Finding, Findings};
use super::resources::Resource;
use super::snapshot::Cut;
use super::tables::{Event, Read, Table, posting};
use crate::decide::UnreadableState;
use crate::read::{events_of, look_up_only, snapshot};
use crate::rows::Posted;
use postonce_schema::{AccountId, EventId, Fingerprint, ResourceId, Rules};
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use uuid::Uuid;

/// Resources that one statement follows: Postgres holds all of their events in memory.
const FOLLOWED: usize = 20_000;
/// Of so many resources, and of so many for the pages of `events`, it is cheaper to read
/// all events once: to follow one takes as long as to read some pages.
const MANY: usize = 50_000;
const PAGES_OF_A_RESOURCE: usize = 5;
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
    /// When it says that it has changed last.
    updated_at: i64,
    /// The event that it says to be in the state of.
    state: Option<Result<(EventId, Fingerprint), UnreadableState>>,
    /// What it holds by its facts, and what its postings have moved, for each account.
    accounts: BTreeMap<AccountId, (i128, i128)>,
    /// The latest comes last.
    events: Vec<Brought>,
}

/// What is asked of an event or a conflict.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Brought {
    updated_at: i64,
    at: (i64, i64),
    id: EventId,
    fingerprint: Fingerprint,
    changed: bool,
    previous_at: Option<i64>,
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
    /// Where something is wrong, the way to the events may be, too: `events` is read
    /// whole, once for all that are looked for.
    pub async fn read(
        &mut self,
        connection: &mut PgConnection,
        rules: &Rules,
        condition: &str,
    ) -> Result<(), VerifyError> {
        let mut snapshot = snapshot(connection).await?;
        let events = format!("{} WHERE {condition}", Table::Events.select());
        self.read_with(&mut snapshot, rules, (condition, &events)).await?;
        Ok(snapshot.commit().await?)
    }

    /// Reads these resources, with the events to which the resource itself leads, in one
    /// snapshot for some of them at a time. Those of which that cannot be all are not kept,
    /// but named.
    pub async fn follow(
        &mut self,
        connection: &mut PgConnection,
        rules: &Rules,
        ids: &[ResourceId],
    ) -> Result<Vec<ResourceId>, VerifyError> {
        let pages = Table::Events.whole(connection).await?.pages();
        if ids.len() >= MANY && pages / PAGES_OF_A_RESOURCE < ids.len() {
            self.read(connection, rules, &any_of(ids)).await?;
            return Ok(Vec::new());
        }
        ids.iter().for_each(|id| _ = self.resources.entry(*id).or_default());
        for ids in ids.chunks(FOLLOWED) {
            let mut snapshot = snapshot(connection).await?;
            look_up_only(&mut snapshot).await?;
            let condition = any_of(ids);
            let events = events_of(Table::Events.columns(), &condition);
            self.read_with(&mut snapshot, rules, (&condition, &events)).await?;
            snapshot.commit().await?;
        }
        let broken: Vec<ResourceId> =
            self.resources.extract_if(|_, suspect| !suspect.is_whole()).map(|(id, _)| id).collect();
        self.places.retain(|_, id| self.resources.contains_key(id));
        Ok(broken)
    }

    async fn read_with(
        &mut self,
        snapshot: &mut PgConnection,
        rules: &Rules,
        (condition, events): (&str, &str),
    ) -> Result<(), VerifyError> {
        let cut = Cut::read(snapshot).await?;
        let select = format!("{} WHERE {condition}", Resource::COLUMNS);
        copy_out(snapshot, &select, |mut row| {
            self.resource(&Resource::read(&mut row)?, rules);
            Ok::<(), VerifyError>(())
        })
        .await?;
        let conflicts = format!("{} WHERE {condition}", Table::Conflicts.select());
        for (table, select) in [(Table::Events, events), (Table::Conflicts, &conflicts)] {
            copy_out(snapshot, select, |mut row| {
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
        self.resources.values_mut().for_each(|suspect| suspect.events.sort_unstable());
        Ok(())
    }

    /// How many of these places have brought a change of the resource.
    pub fn changes(&self, id: ResourceId, counts: impl Fn(i64, i64) -> bool) -> i64 {
        let events = self.resources.get(&id).into_iter().flat_map(|suspect| &suspect.events);
        let changes = events.filter(|event| event.changed && counts(event.at.0, event.at.1));
        i64::try_from(changes.count()).unwrap_or(i64::MAX)
    }

    fn resource(&mut self, resource: &Resource<'_>, rules: &Rules) {
        let suspect = self.resources.entry(resource.id).or_default();
        (suspect.name, suspect.revision) = (Some(resource.name()), resource.revision);
        suspect.updated_at = resource.updated_at;
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
        let changed = matches!(event.outcome, b'P' | b'N');
        suspect.changes += i64::from(changed);
        suspect.conflicts += i64::from(event.outcome == b'C');
        let Event { updated_at, id, fingerprint, previous_at, .. } = *event;
        suspect.events.push(Brought { updated_at, at: (stream, event.offset), id, fingerprint, changed, previous_at });
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
        if self.name.is_none() && !self.events.is_empty() {
            let what = "the resource's row is gone; it has events".to_owned();
            findings.add(Check::Resources, self.finding(id, what));
        } else if !self.is_counted() {
            let what = "the resource's revision is not the number of its changes".to_owned();
            findings.add(Check::Resources, self.finding(id, what).instead(self.changes, self.revision));
        }
        if self.name.is_some() {
            self.judge_chain(id, findings);
        }
    }

    /// Whether its revision is the number of its changes: how many conflicts were among
    /// them no row says, but not more than there are.
    fn is_counted(&self) -> bool {
        (0..=self.conflicts).contains(&self.revision.saturating_sub(self.changes))
    }

    /// Whether these events are all that there are, though they were found by following
    /// the resource.
    fn is_whole(&self) -> bool {
        self.name.is_some() && self.is_counted() && self.is_linked() && self.shown() == self.changes
    }

    fn judge_chain(&self, id: ResourceId, findings: &mut Findings) {
        let shown = self.shown();
        if shown < self.changes {
            let what = format!(
                "`trace` would not show all of the resource's events: by updated_at of the resource and previous_at of \
                 each event it comes to fewer than have changed the resource{}",
                self.told()
            );
            findings.add(Check::Trace, self.finding(id, what).instead(self.changes, shown));
        } else if !self.is_linked() {
            let what = format!(
                "previous_at of the resource's events, or updated_at of the resource, is not when it has changed{}",
                self.told()
            );
            findings.add(Check::Trace, self.finding(id, what));
        }
    }

    /// How many of its changes are found from the resource on, all of one time together.
    fn shown(&self) -> i64 {
        let (mut times, mut next) = (HashSet::new(), vec![self.updated_at]);
        while let Some(time) = next.pop() {
            if times.insert(time) {
                let first = self.events.partition_point(|event| event.updated_at < time);
                let then = self.events[first..].iter().take_while(|event| event.updated_at == time);
                next.extend(then.filter(|event| event.changed).filter_map(|event| event.previous_at));
            }
        }
        let shown = self.events.iter().filter(|event| event.changed && times.contains(&event.updated_at));
        i64::try_from(shown.count()).unwrap_or(i64::MAX)
    }

    /// Whether each change is pointed to as often as there are changes at its time.
    fn is_linked(&self) -> bool {
        let changed = self.events.iter().filter(|event| event.changed).map(|event| event.updated_at);
        let pointed_to = self.events.iter().filter_map(|event| event.previous_at).chain([self.updated_at]);
        let (mut changed, mut pointed_to): (Vec<i64>, Vec<i64>) = (changed.collect(), pointed_to.collect());
        changed.sort_unstable();
        pointed_to.sort_unstable();
        changed == pointed_to
    }

    /// Whether the state is one of the events, or cannot even be read. Only where no pass
    /// over all events answers that.
    fn judge_state(&self, id: ResourceId, findings: &mut Findings) {
        match &self.state {
            Some(Err(error)) => findings.add(Check::Events, self.finding(id, error.to_string())),
            Some(Ok(state)) if self.events.iter().all(|event| (event.id, event.fingerprint) != *state) => {
                findings.add(Check::Events, self.finding(id, STRANGE_STATE.to_owned()).event(state.0));
            }
            _ => {}
        }
    }

    fn finding(&self, id: ResourceId, what: String) -> Finding {
        let mut finding = Finding::new(what).resource(id);
        finding.resource.clone_from(&self.name);
        match self.events.last() {
            Some(Brought { at: (stream, offset), id, .. }) => finding.at(*stream, *offset).event(*id),
            None => finding,
        }
    }

    /// The resource's events, for a person to look at.
    fn told(&self) -> String {
        let mut text = String::new();
        for Brought { at: (stream, offset), id, .. } in self.events.iter().rev().take(MOST_EVENTS) {
            let separator = if text.is_empty() { "; its events: " } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(text, "{separator}{id} at offset {offset} of stream {stream}");
        }
        text
    }
}

impl Suspects {
    /// Judges each with its postings, and whether it is in the state of one of its events.
    pub async fn judge_all(
        mut self,
        connection: &mut PgConnection,
        findings: &mut Findings,
    ) -> Result<(), VerifyError> {
        self.read_postings(connection).await?;
        self.judge_states(findings);
        self.judge(findings);
        Ok(())
    }

    fn judge_states(&self, findings: &mut Findings) {
        let mut resources: Vec<(&ResourceId, &Suspect)> = self.resources.iter().collect();
        resources.sort_unstable_by_key(|(id, _)| **id);
        resources.into_iter().for_each(|(id, suspect)| suspect.judge_state(*id, findings));
    }
}

/// The condition for these resources.
pub fn any_of(ids: &[ResourceId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| Uuid::from_bytes(*id.as_bytes()).to_string()).collect();
    format!("resource_id = ANY('{{{}}}'::uuid[])", ids.join(","))
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
