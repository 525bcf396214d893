//! Which offsets are read again.

use super::ReplayError;
use crate::claim::{Lineage, other_lineages};
use crate::reread::{Ranges, RereadError, Source};
use crate::stop::Stop;
use postonce_schema::Timestamp;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;

/// One end of what is to be read, as a person says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Where the log begins.
    Earliest,
    /// The last stable offset.
    End,
    /// This offset in each partition.
    Offset(i64),
    /// This offset in one partition.
    Partition { partition: i32, offset: i64 },
    /// The first message with this Kafka timestamp or a later one.
    Time(Timestamp),
}

/// Where the live ledger stands in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Live {
    pub first_offset: i64,
    pub next_offset: i64,
}

/// What is read of one partition.
#[derive(Debug, Clone, Serialize)]
pub struct Span {
    pub partition: i32,
    pub from: i64,
    /// Exclusive.
    pub to: i64,
    pub log_start: i64,
    /// The last stable offset, exclusive.
    pub log_end: i64,
    /// None where the ledger has read nothing of it.
    pub live: Option<Live>,
}

/// What is read of the topic.
#[derive(Debug, Clone)]
pub struct Plan {
    pub lineage: Lineage,
    pub spans: Vec<Span>,
}

impl Plan {
    /// By default from where the log begins to where the live ledger stands: it is not
    /// expected to know what it has not read. Never past the last stable offset.
    pub async fn make(
        source: &Source,
        connection: &mut PgConnection,
        from: &[Place],
        to: &[Place],
    ) -> Result<Self, ReplayError> {
        let lineage = source.lineage().clone();
        let live = live_streams(connection, &lineage).await?;
        if live.is_empty() && to.is_empty() {
            return Err(nothing_read(connection, lineage).await);
        }
        let partitions = source.partitions()?;
        for place in from.iter().chain(to) {
            match place {
                Place::Partition { partition, .. } if !partitions.contains(partition) => {
                    return Err(RereadError::NoPartition(lineage.topic, *partition).into());
                }
                _ => {}
            }
        }
        let mut spans = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let live = live.get(&partition).copied();
            let log = source.bounds(partition)?;
            check_end(&lineage.topic, partition, live, log)?;
            let at = |time| Ok(source.offset_at(partition, time)?.unwrap_or(log.1));
            let stands = live.map_or(log.0, |live| live.next_offset);
            let from = offset(chosen(from, partition), log.0, log, at)?;
            let to = offset(chosen(to, partition), stands, log, at)?;
            spans.push(Span { partition, from, to: to.max(from), log_start: log.0, log_end: log.1, live });
        }
        Ok(Self { lineage, spans })
    }

    pub fn ranges(&self) -> Ranges {
        Ranges::new(self.spans.iter().map(|span| (span.partition, span.from, span.to)))
    }

    /// Offsets up to the last stable one that the live ledger has not read yet.
    pub fn behind(&self) -> u64 {
        let next = |span: &Span| span.live.map_or(span.log_start, |live| live.next_offset);
        self.spans.iter().map(|span| u64::try_from(span.log_end - next(span)).unwrap_or(0)).sum()
    }
}

impl Span {
    /// How many offsets the ledger has read that retention has deleted since.
    pub fn deleted(&self) -> u64 {
        self.live.map_or(0, |live| u64::try_from(self.log_start - live.first_offset).unwrap_or(0))
    }
}

/// Where the live ledger stands in the partitions of this lineage.
pub async fn live_streams(
    connection: &mut PgConnection,
    lineage: &Lineage,
) -> Result<BTreeMap<i32, Live>, sqlx::Error> {
    let rows: Vec<(i32, i64, i64)> = sqlx::query_as(
        "SELECT partition, first_offset, next_offset FROM streams
         WHERE cluster_id = $1 AND topic = $2 AND topic_id = $3 AND NOT replay",
    )
    .bind(&lineage.cluster_id)
    .bind(&lineage.topic)
    .bind(&lineage.topic_id)
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|(partition, first_offset, next_offset)| (partition, Live { first_offset, next_offset }))
        .collect())
}

async fn nothing_read(connection: &mut PgConnection, lineage: Lineage) -> ReplayError {
    let others = match other_lineages(connection, &lineage).await {
        Ok(others) => others,
        Err(failure) => return failure.into(),
    };
    let known = others.first().map_or(String::new(), |known| {
        let Lineage { cluster_id, topic_id, .. } = &known.lineage;
        format!(
            "; it has read {} offsets of a topic of that name with id {topic_id} on cluster {cluster_id}",
            known.offsets
        )
    });
    let Lineage { cluster_id, topic, topic_id } = lineage;
    ReplayError::NothingRead { topic, topic_id, cluster_id, known }
}

/// A log that ends before the ledger's offset has lost messages that are posted.
fn check_end(topic: &str, partition: i32, live: Option<Live>, (_, log_end): (i64, i64)) -> Result<(), Stop> {
    match live {
        Some(Live { next_offset, .. }) if next_offset > log_end => {
            Err(Stop::AheadOfLog { topic: topic.to_owned(), partition, next_offset, log_end })
        }
        _ => Ok(()),
    }
}

/// What was said of this partition, or else of all.
fn chosen(places: &[Place], partition: i32) -> Option<Place> {
    let own = places.iter().find(|place| matches!(place, Place::Partition { partition: p, .. } if *p == partition));
    own.or_else(|| places.iter().find(|place| !matches!(place, Place::Partition { .. }))).copied()
}

/// Never outside the log.
fn offset(
    place: Option<Place>,
    default: i64,
    (start, end): (i64, i64),
    at: impl Fn(Timestamp) -> Result<i64, RereadError>,
) -> Result<i64, RereadError> {
    let wanted = match place {
        None => default,
        Some(Place::Earliest) => start,
        Some(Place::End) => end,
        Some(Place::Offset(offset) | Place::Partition { offset, .. }) => offset,
        Some(Place::Time(time)) => at(time)?,
    };
    Ok(wanted.min(end).max(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_of_its_own_goes_before_what_was_said_of_all() {
        let places = [Place::Offset(5), Place::Partition { partition: 1, offset: 7 }];
        assert_eq!(chosen(&places, 0), Some(Place::Offset(5)));
        assert_eq!(chosen(&places, 1), Some(places[1]));
        assert_eq!(chosen(&places[1..], 0), None);
    }

    #[test]
    fn no_place_lies_outside_the_log() {
        let time = Timestamp::EPOCH;
        let find = |place| offset(place, 40, (10, 50), |_| Ok(20)).expect("no question of the broker");
        assert_eq!(find(None), 40);
        assert_eq!(find(Some(Place::Earliest)), 10);
        assert_eq!(find(Some(Place::End)), 50);
        assert_eq!(find(Some(Place::Offset(3))), 10);
        assert_eq!(find(Some(Place::Partition { partition: 0, offset: 99 })), 50);
        assert_eq!(find(Some(Place::Time(time))), 20);
    }
}
