//! One look at a consumer's `/metrics`.

use anyhow::{Context, Result, ensure};
use prometheus_parse::{Sample, Value};
use std::time::{Duration, Instant};
use ureq::Agent;

/// A consumer answers within milliseconds; one that does not is told as away.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What a consumer said, and when.
pub struct Scrape {
    pub at: Instant,
    samples: Vec<Sample>,
}

/// Cumulative counts by upper bound, as Prometheus keeps a histogram.
pub type Buckets = Vec<(f64, f64)>;

impl Scrape {
    /// Reads the text format of Prometheus.
    pub fn parse(page: &str, at: Instant) -> Result<Self> {
        let lines = page.lines().map(|line| Ok(line.to_owned()));
        let scrape = prometheus_parse::Scrape::parse(lines).context("no page of metrics")?;
        ensure!(
            scrape.samples.iter().any(|sample| sample.metric.starts_with("postonce_")),
            "a page of metrics, but not of postonce consume"
        );
        Ok(Self { at, samples: scrape.samples })
    }

    /// The values of a counter or gauge by one of its labels, summed over the others.
    pub fn by<'s>(&'s self, metric: &'s str, label: &'s str) -> impl Iterator<Item = (&'s str, f64)> + 's {
        self.of(metric).filter_map(move |sample| Some((sample.labels.get(label)?, number(&sample.value)?)))
    }

    /// A counter or gauge over all its labels; nothing where there is none.
    pub fn sum(&self, metric: &str) -> Option<f64> {
        self.of(metric).filter_map(|sample| number(&sample.value)).reduce(|sum, value| sum + value)
    }

    /// A value of each partition.
    pub fn of_partitions<'s>(&'s self, metric: &'s str) -> impl Iterator<Item = ((String, u32), f64)> + 's {
        self.of(metric).filter_map(|sample| {
            let partition = sample.labels.get("partition")?.parse().ok()?;
            Some(((sample.labels.get("topic")?.to_owned(), partition), number(&sample.value)?))
        })
    }

    pub fn buckets(&self, metric: &str) -> Option<Buckets> {
        self.of(metric).find_map(|sample| match &sample.value {
            Value::Histogram(buckets) => Some(buckets.iter().map(|one| (one.less_than, one.count)).collect()),
            _ => None,
        })
    }

    fn of<'s>(&'s self, metric: &'s str) -> impl Iterator<Item = &'s Sample> + 's {
        self.samples.iter().filter(move |sample| sample.metric == metric)
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => Some(*number),
        Value::Histogram(_) | Value::Summary(_) => None,
    }
}

/// For questions to consumers.
pub fn agent() -> Agent {
    Agent::config_builder().timeout_global(Some(ANSWER_WITHIN)).build().into()
}

/// Asks a consumer.
pub fn ask(agent: &Agent, url: &str) -> Result<Scrape> {
    let page = agent.get(url).call()?.body_mut().read_to_string()?;
    Scrape::parse(&page, Instant::now())
}
