//! Two sides in the order of their keys, read once and never held.

use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use std::cmp::Ordering;

/// A row and what it is found by.
pub trait Keyed {
    type Key: Ord;

    fn key(&self) -> Self::Key;
}

/// What stands under one key.
#[derive(Debug, PartialEq, Eq)]
pub enum Pair<T> {
    OnlyLive(T),
    OnlyRebuilt(T),
    Both(T, T),
}

/// The rows of one side, as Postgres sends them.
pub type Rows<'c, T> = BoxStream<'c, sqlx::Result<T>>;

/// Hands each key to `each`, with what both sides have under it.
pub async fn merge<T: Keyed>(
    mut live: Rows<'_, T>,
    mut rebuilt: Rows<'_, T>,
    mut each: impl FnMut(Pair<T>),
) -> sqlx::Result<()> {
    let (mut left, mut right) = (live.try_next().await?, rebuilt.try_next().await?);
    loop {
        let order = match (&left, &right) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.key().cmp(&right.key()),
        };
        let (mut taken, mut other) = (None, None);
        if order.is_le() {
            taken = left.take();
            left = live.next().await.transpose()?;
        }
        if order.is_ge() {
            other = right.take();
            right = rebuilt.next().await.transpose()?;
        }
        match (taken, other) {
            (Some(taken), None) => each(Pair::OnlyLive(taken)),
            (None, Some(other)) => each(Pair::OnlyRebuilt(other)),
            (Some(taken), Some(other)) => each(Pair::Both(taken, other)),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    #[derive(Debug, PartialEq, Eq)]
    struct Row(u8);

    impl Keyed for Row {
        type Key = u8;

        fn key(&self) -> u8 {
            self.0
        }
    }

    fn merged(live: &[u8], rebuilt: &[u8]) -> Vec<Pair<Row>> {
        let rows = |rows: &[u8]| stream::iter(rows.iter().map(|n| Ok(Row(*n))).collect::<Vec<_>>()).boxed();
        let mut pairs = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(merge(rows(live), rows(rebuilt), |pair| pairs.push(pair))).expect("no errors in the rows");
        pairs
    }

    #[test]
    fn every_key_comes_once() {
        use Pair::{Both, OnlyLive, OnlyRebuilt};
        let expected =
            [OnlyLive(Row(1)), Both(Row(2), Row(2)), OnlyRebuilt(Row(3)), OnlyLive(Row(5)), OnlyLive(Row(6))];
        assert_eq!(merged(&[1, 2, 5, 6], &[2, 3]), expected);
        assert_eq!(merged(&[], &[4]), [OnlyRebuilt(Row(4))]);
        assert_eq!(merged(&[], &[]), []);
    }
}
