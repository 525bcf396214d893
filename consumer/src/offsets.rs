//! Which offsets a batch holds, for whoever reads the log.

use std::collections::BTreeMap;
use std::fmt;

/// `0:120-355 3:7-9`: partition, first and last offset.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Offsets(BTreeMap<i32, (i64, i64)>);

impl FromIterator<(i32, i64)> for Offsets {
    fn from_iter<I: IntoIterator<Item = (i32, i64)>>(places: I) -> Self {
        let mut ranges = BTreeMap::new();
        for (partition, offset) in places {
            let (first, last) = ranges.entry(partition).or_insert((offset, offset));
            *first = offset.min(*first);
            *last = offset.max(*last);
        }
        Self(ranges)
    }
}

impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (partition, (first, last))) in self.0.iter().enumerate() {
            let space = if n == 0 { "" } else { " " };
            write!(f, "{space}{partition}:{first}-{last}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_told_with_its_first_and_last_offset() {
        let offsets: Offsets = [(3, 8), (0, 120), (3, 7), (0, 355), (3, 9)].into_iter().collect();
        assert_eq!(offsets.to_string(), "0:120-355 3:7-9");
        assert_eq!(Offsets::default().to_string(), "");
    }
}
