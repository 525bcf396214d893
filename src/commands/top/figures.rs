//! What a person wants to know, from what the consumers have said lately. Pure.

use super::scrape::{Buckets, Scrape};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Rates and latencies are those of the last seconds.
const WINDOW: Duration = Duration::from_secs(10);

/// In the order in which they are shown.
const OUTCOMES: [&str; 6] = ["posted", "noted", "duplicate", "superseded", "conflict", "rejected"];

/// One consumer process, and what it has said within the window.
pub struct Instance {
    pub name: String,
    looks: VecDeque<Scrape>,
    /// Why there is no new look.
    away: Option<String>,
}

/// All of one screen.
#[derive(Debug, Serialize)]
pub struct Figures {
    pub instances: Vec<Condition>,
    pub messages_per_second: f64,
    pub outcomes: Vec<Outcome>,
    /// From a message's Kafka timestamp to its commit.
    pub end_to_end_seconds: Option<Quantiles>,
    pub transaction_seconds: Option<Quantiles>,
    /// Part of the transaction's time, largest first.
    pub steps: Vec<(String, f64)>,
    pub lag_messages: f64,
    pub partitions: Vec<Partition>,
    pub quarantine_open: f64,
    pub incidents_open: f64,
}

#[derive(Debug, Serialize)]
pub struct Condition {
    pub name: String,
    pub workers_ready: f64,
    /// Why it is not heard, or for what it waits.
    pub problem: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub outcome: &'static str,
    pub per_second: f64,
    /// Since its process started.
    pub total: f64,
}

#[derive(Debug, Serialize, Clone, Copy, PartialEq)]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

#[derive(Debug, Serialize)]
pub struct Partition {
    pub topic: String,
    pub partition: u32,
    pub instance: String,
    pub lag_messages: f64,
    pub oldest_unposted_seconds: Option<f64>,
}

impl Instance {
    pub fn new(name: String) -> Self {
        Self { name, looks: VecDeque::new(), away: None }
    }

    pub fn heard(&mut self, scrape: Scrape) {
        self.away = None;
        while self.looks.front().is_some_and(|look| scrape.at.duration_since(look.at) > WINDOW) {
            self.looks.pop_front();
        }
        self.looks.push_back(scrape);
    }

    /// What it said before is old now: nothing of it is shown any more.
    pub fn not_heard(&mut self, why: String) {
        self.looks.clear();
        self.away = Some(why);
    }

    fn last(&self) -> Option<&Scrape> {
        self.looks.back()
    }

    /// The two ends of the window, and the seconds between them.
    fn ends(&self) -> Option<(&Scrape, &Scrape, f64)> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        (seconds > 0.0).then_some((first, last, seconds))
    }

    fn condition(&self) -> Condition {
        let ready = self.last().and_then(|look| look.sum("postonce_workers_ready")).unwrap_or(0.0);
        let stopped = self.last().and_then(|look| look.by("postonce_stopped", "reason").find(|(_, on)| *on > 0.0));
        let problem = match (&self.away, stopped) {
            (Some(why), _) => Some(why.clone()),
            (None, Some((reason, _))) => Some(format!("stopped and waits for a person: {reason}")),
            (None, None) if ready == 0.0 => Some("no worker is ready".to_owned()),
            (None, None) => None,
        };
        Condition { name: self.name.clone(), workers_ready: ready, problem }
    }
}

impl Figures {
    pub fn of(instances: &[Instance]) -> Self {
        let outcomes = OUTCOMES.map(|outcome| Outcome {
            outcome,
            per_second: rate(instances, |look| labelled(look, "postonce_events_total", "outcome", outcome)),
            total: total(lasts(instances).map(|look| labelled(look, "postonce_events_total", "outcome", outcome))),
        });
        let partitions = partitions(instances);
        Self {
            instances: instances.iter().map(Instance::condition).collect(),
            messages_per_second: total(outcomes.iter().map(|outcome| outcome.per_second)),
            outcomes: outcomes.into(),
            end_to_end_seconds: quantiles(instances, "postonce_end_to_end_seconds"),
            transaction_seconds: quantiles(instances, "postonce_transaction_seconds"),
            steps: steps(instances),
            lag_messages: total(partitions.iter().map(|partition| partition.lag_messages)),
            partitions,
            // Of the whole ledger: each process says the same, or knows it a moment later.
            quarantine_open: most(instances, "postonce_quarantine_open"),
            incidents_open: most(instances, "postonce_incidents_open"),
        }
    }
}

/// `sum` of nothing is -0.
fn total(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |sum, number| sum + number)
}

fn lasts(instances: &[Instance]) -> impl Iterator<Item = &Scrape> {
    instances.iter().filter_map(Instance::last)
}

fn labelled(look: &Scrape, metric: &str, label: &str, wanted: &str) -> f64 {
    total(look.by(metric, label).filter(|(value, _)| *value == wanted).map(|(_, number)| number))
}

/// How much a counter has grown. A process that was started again counts from zero.
fn growth(first: f64, last: f64) -> f64 {
    if last < first { last } else { last - first }
}

fn rate(instances: &[Instance], count: impl Fn(&Scrape) -> f64) -> f64 {
    let each = instances.iter().filter_map(Instance::ends);
    total(each.map(|(first, last, seconds)| growth(count(first), count(last)) / seconds))
}

fn most(instances: &[Instance], metric: &str) -> f64 {
    lasts(instances).filter_map(|look| look.sum(metric)).fold(0.0, f64::max)
}

fn steps(instances: &[Instance]) -> Vec<(String, f64)> {
    const SECONDS: &str = "postonce_transaction_step_seconds_sum";
    let mut spent = BTreeMap::<String, f64>::new();
    for (first, last, _) in instances.iter().filter_map(Instance::ends) {
        for (step, seconds) in last.by(SECONDS, "step") {
            *spent.entry(step.to_owned()).or_default() += growth(labelled(first, SECONDS, "step", step), seconds);
        }
    }
    let all = total(spent.values().copied());
    let mut parts: Vec<(String, f64)> =
        spent.into_iter().filter(|_| all > 0.0).map(|(step, seconds)| (step, seconds / all)).collect();
    parts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    parts
}

fn partitions(instances: &[Instance]) -> Vec<Partition> {
    let mut found = BTreeMap::new();
    for instance in instances {
        let Some(look) = instance.last() else { continue };
        let oldest: BTreeMap<_, _> = look.of_partitions("postonce_oldest_unposted_seconds").collect();
        for (place, lag_messages) in look.of_partitions("postonce_lag_messages") {
            let oldest_unposted_seconds = oldest.get(&place).copied();
            let (topic, partition) = place.clone();
            let instance = instance.name.clone();
            found.insert(place, Partition { topic, partition, instance, lag_messages, oldest_unposted_seconds });
        }
    }
    found.into_values().collect()
}

/// Of what came within the window; nothing where nothing came.
fn quantiles(instances: &[Instance], metric: &str) -> Option<Quantiles> {
    let mut all = Buckets::new();
    for (first, last, _) in instances.iter().filter_map(Instance::ends) {
        let Some(last) = last.buckets(metric) else { continue };
        let first = first.buckets(metric).unwrap_or_default();
        for (place, (bound, count)) in last.into_iter().enumerate() {
            let before = first.get(place).map_or(0.0, |(_, count)| *count);
            match all.get_mut(place) {
                Some((_, sum)) => *sum += growth(before, count),
                None => all.push((bound, growth(before, count))),
            }
        }
    }
    Some(Quantiles { p50: quantile(0.50, &all)?, p99: quantile(0.99, &all)? })
}

/// As PromQL's `histogram_quantile` has it: within a bucket values are taken as spread evenly,
/// and beyond the last bound nothing is known but that bound.
fn quantile(part: f64, buckets: &Buckets) -> Option<f64> {
    let (_, all) = *buckets.last()?;
    if all <= 0.0 {
        return None;
    }
    let wanted = part * all;
    let (mut lower, mut below) = (0.0, 0.0);
    for (bound, count) in buckets {
        if *count >= wanted {
            let inside = if *count > below { (wanted - below) / (count - below) } else { 1.0 };
            return Some(if bound.is_finite() { lower + (bound - lower) * inside } else { lower });
        }
        (lower, below) = (*bound, *count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn page(posted: u32, lag: u32, fast: u32, slow: u32) -> String {
        format!(
            "# TYPE postonce_events_total counter\n\
             postonce_events_total{{outcome=\"posted\"}} {posted}\n\
             # TYPE postonce_workers_ready gauge\npostonce_workers_ready 2\n\
             # TYPE postonce_lag_messages gauge\n\
             postonce_lag_messages{{topic=\"payments\",partition=\"10\"}} {lag}\n\
             postonce_lag_messages{{topic=\"payments\",partition=\"9\"}} 1\n\
             # TYPE postonce_oldest_unposted_seconds gauge\n\
             postonce_oldest_unposted_seconds{{topic=\"payments\",partition=\"10\"}} 4\n\
             # TYPE postonce_quarantine_open gauge\n\
             postonce_quarantine_open{{code=\"empty\"}} 2\npostonce_quarantine_open{{code=\"not_json\"}} 3\n\
             # TYPE postonce_end_to_end_seconds histogram\n\
             postonce_end_to_end_seconds_bucket{{le=\"0.1\"}} {fast}\n\
             postonce_end_to_end_seconds_bucket{{le=\"1\"}} {slow}\n\
             postonce_end_to_end_seconds_bucket{{le=\"+Inf\"}} {slow}\n\
             postonce_end_to_end_seconds_sum 1\npostonce_end_to_end_seconds_count {slow}\n"
        )
    }

    fn watched(pages: &[(u64, String)]) -> Instance {
        let begin = Instant::now();
        let mut instance = Instance::new("one".to_owned());
        for (second, page) in pages {
            instance.heard(Scrape::parse(page, begin + Duration::from_secs(*second)).unwrap());
        }
        instance
    }

    #[test]
    fn rates_and_latencies_are_those_of_the_window() {
        // The first look is too old by the time of the last one.
        let one = watched(&[(0, page(0, 0, 0, 0)), (10, page(1_000, 0, 100, 100)), (20, page(3_000, 7, 150, 200))]);
        let figures = Figures::of(&[one]);
        assert_eq!(figures.messages_per_second, 200.0);
        assert_eq!((figures.outcomes[0].outcome, figures.outcomes[0].total), ("posted", 3_000.0));
        assert_eq!(figures.end_to_end_seconds.unwrap().p50, 0.1, "half of the hundred took at most that");
        assert!(figures.end_to_end_seconds.unwrap().p99 > 0.9);
        assert_eq!((figures.lag_messages, figures.quarantine_open), (8.0, 5.0));
        let partitions: Vec<u32> = figures.partitions.iter().map(|partition| partition.partition).collect();
        assert_eq!(partitions, [9, 10], "in the order of their numbers");
        assert_eq!(figures.partitions[1].oldest_unposted_seconds, Some(4.0));
    }

    #[test]
    fn two_consumers_count_together_but_for_what_is_the_whole_ledgers() {
        let one = || watched(&[(0, page(0, 1, 0, 0)), (10, page(500, 1, 5, 5))]);
        let figures = Figures::of(&[one(), one()]);
        assert_eq!((figures.messages_per_second, figures.quarantine_open), (100.0, 5.0));
    }

    #[test]
    fn a_process_that_was_started_again_counts_from_zero() {
        let one = watched(&[(0, page(9_000, 0, 9, 9)), (10, page(400, 0, 4, 4))]);
        assert_eq!(Figures::of(&[one]).messages_per_second, 40.0);
    }

    #[test]
    fn who_is_not_heard_shows_nothing_old() {
        let mut one = watched(&[(0, page(0, 9, 0, 0)), (5, page(500, 9, 5, 5))]);
        one.not_heard("connection refused".to_owned());
        let figures = Figures::of(&[one]);
        assert_eq!((figures.messages_per_second, figures.lag_messages), (0.0, 0.0));
        assert_eq!(figures.instances[0].problem.as_deref(), Some("connection refused"));
        assert_eq!(figures.end_to_end_seconds, None);
        assert!(figures.lag_messages.is_sign_positive(), "-0 is no number for people");
    }

    #[test]
    fn a_page_of_somebody_else_is_refused() {
        assert!(Scrape::parse("up 1\n", Instant::now()).is_err());
        assert!(Scrape::parse("<html>", Instant::now()).is_err());
    }
}
