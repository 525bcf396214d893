//! What a person accepts, so that the consumer goes on where it has stopped: another
//! lineage of the topic, or offsets that are lost. Both are written down, with the name.

use crate::batch::Advance;
use crate::claim::{Claim, Lineage};
use crate::failure::Failure;
use crate::store::Transaction;
use postonce_schema::Rules;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use std::fmt::{self, Display};
use std::str::FromStr;
use uuid::Uuid;

/// What the flags of this process accept.
#[derive(Debug, Clone, Default)]
pub struct Accepted {
    /// The id of the topic that may be gone on with.
    pub topic_id: Option<String>,
    pub gaps: Vec<Gap>,
    /// Who accepts it.
    pub person: String,
}

/// Offsets that were deleted before they were read, both ends inclusive, as the stop
/// prints them: `[PARTITION:]FROM-TO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// Any, if it is not said.
    pub partition: Option<i32>,
    pub from: i64,
    pub to: i64,
}

impl Gap {
    /// Whether exactly this loss is meant. The log's start may have moved on since the
    /// person saw it, but not past the end that he has accepted.
    fn covers(&self, partition: i32, next_offset: i64, log_start: i64) -> bool {
        self.partition.is_none_or(|meant| meant == partition) && self.from == next_offset && log_start - 1 <= self.to
    }
}

impl FromStr for Gap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("\"{text}\" is no range of offsets; write FROM-TO or PARTITION:FROM-TO, such as 0:120-355");
        let (partition, range) = match text.split_once(':') {
            Some((partition, range)) => (Some(partition.parse().map_err(|_| wrong())?), range),
            None => (None, text),
        };
        let (from, to) = range.split_once('-').ok_or_else(wrong)?;
        let gap = Self { partition, from: from.parse().map_err(|_| wrong())?, to: to.parse().map_err(|_| wrong())? };
        if partition.is_some_and(|partition| partition < 0) || gap.from > gap.to {
            return Err(wrong());
        }
        Ok(gap)
    }
}

impl Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(partition) = self.partition {
            write!(f, "{partition}:")?;
        }
        write!(f, "{}-{}", self.from, self.to)
    }
}

impl Accepted {
    /// Whether a person has accepted that these offsets of a partition are lost.
    pub fn gap(&self, partition: i32, next_offset: i64, log_start: i64) -> bool {
        self.gaps.iter().any(|gap| gap.covers(partition, next_offset, log_start))
    }
}

/// Writes down that a person goes on with this lineage. From then on it is known, and
/// nobody needs a flag for it. Of several workers one writes.
pub async fn lineage(connection: &mut PgConnection, lineage: &Lineage, person: &str) -> Result<(), Failure> {
    let mut transaction = connection.begin().await?;
    // Without the lock two workers would both find nothing, and write it twice.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('postonce lineage ' || current_schema(), 0))")
        .execute(&mut *transaction)
        .await?;
    sqlx::query(
        "INSERT INTO actions (action_id, action, person, stream) SELECT $1, 'accept_lineage', $2, $3
         WHERE NOT EXISTS (SELECT FROM actions WHERE action = 'accept_lineage' AND stream = $3)",
    )
    .bind(Uuid::from_u128(rand::random()))
    .bind(person)
    .bind(lineage.stream(0).as_i64())
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await.map_err(Failure::of_commit)
}

/// Writes down that everything before `log_start` is lost, as a batch like any other: with
/// an outcome for each offset, and under the fence.
pub async fn gap(
    connection: &mut PgConnection,
    rules: &Rules,
    claim: &Claim,
    log_start: i64,
    person: &str,
) -> Result<Claim, Failure> {
    let advance = Advance::over_gap(claim, log_start)?;
    let mut transaction = Transaction::begin(connection).await?;
    transaction.write_accepted_gap(&advance, person).await?;
    let advances = [advance];
    transaction.write_batches(&advances).await?;
    transaction.fence(&advances, rules).await?;
    transaction.commit().await?;
    let [Advance { after, .. }] = advances;
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_written_as_it_is_read() {
        for text in ["10-12", "0:10-12", "7:0-0"] {
            assert_eq!(text.parse::<Gap>().unwrap().to_string(), text);
        }
        for refused in ["", "10", "12-10", "x:1-2", "-1:1-2", "1-2-3", "0:", "1-9223372036854775808"] {
            assert!(refused.parse::<Gap>().is_err(), "{refused}");
        }
    }

    #[test]
    fn only_the_loss_that_was_seen_is_accepted() {
        let accepted = |text: &str| Accepted { gaps: vec![text.parse().unwrap()], ..Accepted::default() };
        assert!(accepted("0:10-12").gap(0, 10, 13));
        assert!(accepted("10-12").gap(3, 10, 13), "any partition");
        assert!(accepted("0:10-20").gap(0, 10, 13), "less is lost than was accepted");
        assert!(!accepted("0:10-12").gap(1, 10, 13), "another partition");
        assert!(!accepted("0:10-12").gap(0, 10, 14), "more is lost than was accepted");
        assert!(!accepted("0:9-12").gap(0, 10, 13), "another range");
        assert!(!accepted("0:11-12").gap(0, 10, 13), "a part of it");
        assert!(!Accepted::default().gap(0, 10, 13));
    }
}
