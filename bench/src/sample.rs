//! What several runs come to: the median, with the least and the greatest.

use crate::bench::Run;
use serde::Serialize;
use std::collections::BTreeMap;

/// The runs of every contestant, in the order of the rounds.
#[derive(Default)]
pub struct Samples(BTreeMap<&'static str, Vec<Run>>);

/// Median, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// None without a value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (below, above) = (values.get((values.len() - 1) / 2)?, values.get(values.len() / 2)?);
        Some(Self { median: f64::midpoint(*below, *above), min, max })
    }
}

impl Samples {
    pub fn add(&mut self, contestant: &'static str, run: Run) {
        self.0.entry(contestant).or_default().push(run);
    }

    pub fn runs(&self, contestant: &str) -> &[Run] {
        self.0.get(contestant).map_or(&[], Vec::as_slice)
    }

    /// Of a figure that each run has.
    pub fn spread(&self, contestant: &str, figure: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.runs(contestant).iter().filter_map(figure))
    }

    /// Events in a second.
    pub fn rate(&self, contestant: &str) -> Option<Spread> {
        self.spread(contestant, Run::rate)
    }

    /// A figure that only this measurement has.
    pub fn more(&self, contestant: &str, name: &str) -> Option<Spread> {
        self.spread(contestant, |run| run.more.get(name).copied())
    }

    /// Rate by rate, each within its round: both ran one after the other, on the machine as
    /// it was then.
    pub fn ratio(&self, of: &str, to: &str) -> Option<Spread> {
        let pairs = self.runs(of).iter().zip(self.runs(to));
        Spread::of(pairs.filter_map(|(of, to)| Some(of.rate()? / to.rate()?)))
    }

    /// Of several, the one with the greatest rate.
    pub fn best<'n>(&self, contestants: &[&'n str]) -> Option<&'n str> {
        let rated = contestants.iter().filter_map(|name| Some((*name, self.rate(name)?.median)));
        rated.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(runs: &[(&'static str, u64)]) -> Samples {
        let mut samples = Samples::default();
        for (name, events) in runs {
            samples.add(name, Run { events: *events, seconds: 1.0, ..Run::default() });
        }
        samples
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(Spread::of([3.0, 1.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
        assert_eq!(Spread::of([4.0, 1.0]).map(|spread| spread.median), Some(2.5));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        // A slow round of both is no slow ratio.
        let samples = samples(&[("a", 50), ("b", 100), ("a", 5), ("b", 10), ("a", 60), ("b", 100)]);
        assert_eq!(samples.ratio("a", "b"), Some(Spread { median: 0.5, min: 0.5, max: 0.6 }));
        assert_eq!(samples.ratio("a", "nobody"), None);
    }

    #[test]
    fn the_best_is_the_fastest_that_has_run() {
        let samples = samples(&[("one", 10), ("eight", 70)]);
        assert_eq!(samples.best(&["one", "eight", "nobody"]), Some("eight"));
        assert_eq!(samples.best(&["nobody"]), None);
    }
}
