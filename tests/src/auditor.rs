//! An independent auditor: for every offset of every stream it asks whether the recorded
//! outcome is right, and why. It reads what the consumer has recorded and what stands in
//! the topic, and works with a model of its own ([`crate::model`]), not with the product's
//! code; only whether a message had to be refused, and under which code, it asks the
//! parser, which has a suite of samples of its own, and which topic this is, Kafka by the
//! product's call.
//!
//! - Posted, Noted: not seen before, and greater than all that was accepted before for
//!   its resource; its postings are position(new) − position(old).
//! - Duplicate: a message of the same id and content was accepted before.
//! - Superseded: not seen before, and a greater one was accepted before.
//! - Conflict: the same id was accepted before with another content, not with this one.
//! - Rejected: the parser refuses it, and it is in quarantine under that code.
//! - A hole holds no message, and every message has an outcome.
//! - Nothing is posted, known or told where no event was accepted, and each resource ends
//!   as its history does.
//!
//! "Before" is the order of commit; `records.rs` says how it is known.

mod history;
mod records;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use history::{Arrival, History};
use jiff::Timestamp;
use postonce_consumer::claim::Lineage;
use postonce_consumer::topic::lineage;
use postonce_schema::{Decoder, Header, Kinds, POSITIONS_TOML, Reject, Rules};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use records::{Accepted, At, Mark, Records, Resource, Stream, Transaction, add};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::books::Ledger;
use crate::messages::{Message, read_all, watermarks};
use crate::model::{self, Event, SHIPPED, Version};

const LIMIT: Duration = Duration::from_secs(20);
/// What is told of a ledger that is wrong in many places.
const TOLD: usize = 20;

/// By which terms events were accepted.
pub struct Terms {
    pub rules: &'static [Version],
    pub decoder: Decoder,
}

impl Terms {
    /// The shipped rules, and these kinds.
    pub fn shipped(kinds: Kinds) -> Result<Self> {
        Self::of(&[SHIPPED], POSITIONS_TOML, kinds)
    }

    /// These rules, in the model's words and as their file says them.
    pub fn of(rules: &'static [Version], file: &str, kinds: Kinds) -> Result<Self> {
        let parsed = Rules::parse(file).map_err(|error| anyhow::anyhow!("{}: {}", error.line, error.why))?;
        let decoder = Decoder { rules: parsed, kinds, max_ahead: Duration::from_secs(24 * 3600) };
        Ok(Self { rules, decoder })
    }

    /// The events, in plain JSON, of the messages that need not be refused.
    pub fn accepted(&self, messages: &[Message]) -> Result<Vec<String>> {
        messages.iter().filter(|message| self.judge(message).is_ok()).map(plain).collect()
    }

    fn judge(&self, message: &Message) -> Result<(), Reject> {
        let headers: Vec<Header<'_>> = message
            .headers
            .iter()
            .map(|(name, value)| Header { name: name.as_bytes(), value: value.as_deref() })
            .collect();
        let value = message.value.as_deref();
        self.decoder
            .decode(postonce_schema::Message { value, headers: &headers, timestamp: message.timestamp })
            .map(drop)
    }
}

/// What the auditor has seen.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Audited {
    /// Offsets with a message, each judged.
    pub messages: u64,
    /// Offsets whose message is gone from the topic: retention, or another topic. What
    /// the ledger says of them is believed, and is part of the history.
    pub gone: u64,
    /// Of the messages those that were set aside as `internal`: the auditor knows nothing
    /// against them.
    pub internal: u64,
}

/// Audits a ledger against these topics, each with the broker that holds it. Nobody may be
/// writing to it.
pub fn audit(ledger: &Ledger, topics: &[(&str, &str)], terms: &Terms) -> Result<Audited> {
    let records = Records::read(&ledger.db)?;
    let topics = topics.iter().map(|(bootstrap, topic)| Topic::read(bootstrap, topic)).collect::<Result<Vec<_>>>()?;
    let mut audit = Audit {
        records,
        topics,
        terms,
        histories: HashMap::new(),
        reached: HashMap::new(),
        wrong: Vec::new(),
        done: Audited::default(),
    };
    for transaction in std::mem::take(&mut audit.records.transactions) {
        audit.transaction(&transaction);
    }
    audit.every_message_has_an_outcome();
    audit.strangers();
    audit.resources();
    let Audit { wrong, done, .. } = audit;
    let mut told = format!("the auditor objects in {} places:\n", wrong.len());
    wrong.iter().take(TOLD).try_for_each(|line| writeln!(told, "{line}"))?;
    ensure!(wrong.is_empty(), "{told}");
    Ok(done)
}

/// What a topic holds now.
struct Topic {
    cluster: String,
    name: String,
    id: String,
    /// By partition: the start of the log, and the messages.
    partitions: HashMap<i32, (i64, BTreeMap<i64, Message>)>,
}

/// What is in a message.
enum Content {
    Event(Box<Event>),
    /// Nothing that could be accepted, and it is in quarantine for that.
    Refused,
    /// In quarantine, because the database would not take it.
    Internal,
}

struct Audit<'t> {
    records: Records,
    topics: Vec<Topic>,
    terms: &'t Terms,
    /// `None`: it was objected to, and what follows from it is not told again.
    histories: HashMap<Resource, Option<History>>,
    /// By stream where its batches end so far.
    reached: HashMap<i64, i64>,
    wrong: Vec<String>,
    done: Audited,
}

/// What one transaction brought of each resource, stream by stream.
type Brought = BTreeMap<Resource, BTreeMap<i64, VecDeque<Arrival>>>;

impl Audit<'_> {
    fn transaction(&mut self, transaction: &Transaction) {
        let mut brought = Brought::new();
        for batch in &transaction.batches {
            let begins = self.records.streams.get(&batch.stream).map(|stream| stream.first_offset);
            let reached = self.reached.insert(batch.stream, batch.next).or(begins);
            if reached.is_some_and(|reached| reached != batch.from) {
                self.object(
                    (batch.stream, batch.from),
                    &format!("batch {} begins here, not at {reached:?}", batch.seq),
                );
            }
            for (offset, mark) in &batch.marks {
                let at = (batch.stream, *offset);
                if let Err(why) = self.mark(at, *mark, &mut brought) {
                    self.object(at, &format!("{why:#} (batch {})", batch.seq));
                }
            }
        }
        for (resource, streams) in brought {
            let Some(history) = self.histories.entry(resource.clone()).or_insert_with(|| Some(History::default()))
            else {
                continue;
            };
            if let Err((at, why)) = history.settle(streams) {
                self.object(at, &format!("{} {}: {why}", resource.0, resource.1));
                self.histories.insert(resource, None);
            }
        }
    }

    fn object(&mut self, (stream, offset): At, why: &str) {
        let name = match self.records.streams.get(&stream) {
            Some(Stream { topic, partition, .. }) => format!("{topic}/{partition}/{offset}"),
            None => format!("stream {stream}, offset {offset}"),
        };
        self.wrong.push(format!("{name}: {why}"));
    }

    /// What is right or wrong of an offset by itself; an event goes to its resource.
    fn mark(&mut self, at: At, mark: Mark, brought: &mut Brought) -> Result<()> {
        let (stream, offset) = at;
        let stream = self.records.streams.get(&stream).context("a batch of a stream that is not there")?;
        let partition = self.topics.iter().find_map(|topic| topic.partition(stream));
        let (start, messages) = partition.map_or((i64::MAX, None), |(start, messages)| (*start, Some(messages)));
        let message = messages.and_then(|messages| messages.get(&offset));
        let letter = match mark {
            Mark::Hole(end) | Mark::Lost(end) => {
                let held = messages.and_then(|messages| messages.range(offset..end).next());
                ensure!(
                    held.is_none(),
                    "recorded as a hole to {end}, but {} holds a message",
                    held.map_or(0, |(at, _)| *at)
                );
                ensure!(
                    !matches!(mark, Mark::Lost(_)) || start >= end,
                    "recorded as lost to {end}, but the log begins at {start}"
                );
                return Ok(());
            }
            Mark::Outcome(letter) => letter,
        };
        let row = self.records.accepted.remove(&at);
        let told = row.as_ref().map(|row| row.letter);
        ensure!(
            told == (!"DR".contains(letter)).then_some(letter),
            "recorded as {letter}, and its dedup row says {told:?}"
        );
        let (resource, arrival) = match message {
            None => {
                ensure!(offset < start, "recorded as {letter}, but there is no message");
                self.done.gone += 1;
                let Some(row) = row else { return Ok(()) };
                from_row(self.terms, &row, at)?
            }
            Some(message) => {
                self.done.messages += 1;
                match self.read(message, letter)? {
                    Content::Refused => return Ok(()),
                    Content::Internal => {
                        self.done.internal += 1;
                        return Ok(());
                    }
                    Content::Event(event) => from_message(*event, row.as_ref(), at, letter)?,
                }
            }
        };
        let arrival = self.with_consequences(arrival)?;
        brought.entry(resource).or_default().entry(at.0).or_default().push_back(arrival);
        Ok(())
    }

    /// What is in a message, if it was refused where it had to be and only there.
    fn read(&self, message: &Message, letter: char) -> Result<Content> {
        let decoded = self.terms.judge(message);
        if letter == 'R' {
            let content = if decoded.is_ok() { Content::Internal } else { Content::Refused };
            let code = decoded.err().map_or("internal", |reject| reject.code());
            let hash = hash_of(message);
            ensure!(
                self.records.quarantine.contains(&(hash, code.to_owned())),
                "recorded as R, but it is not in quarantine under {code}"
            );
            return Ok(content);
        }
        if let Err(reject) = decoded {
            anyhow::bail!("recorded as {letter}, but it must be refused: {reject}");
        }
        let event = model::read(self.terms.rules, &plain(message)?).context("the auditor cannot read it")?;
        Ok(Content::Event(Box::new(event)))
    }

    fn with_consequences(&mut self, arrival: Arrival) -> Result<Arrival> {
        let incidents = self.records.incidents.remove(&arrival.at).unwrap_or_default();
        let Some(postings) = self.records.postings.remove(&arrival.at) else {
            return Ok(Arrival { incidents, ..arrival });
        };
        if let Some(odd) = &postings.odd {
            anyhow::bail!("{odd} cannot be");
        }
        let time = arrival.standing.1;
        ensure!(postings.effective_at == time, "its postings take effect at {}, not at {time}", postings.effective_at);
        Ok(Arrival { incidents, posted: postings.pairs, ..arrival })
    }

    fn every_message_has_an_outcome(&mut self) {
        let mut judged = 0;
        for (id, stream) in &self.records.streams {
            let reached = self.reached.get(id).copied().unwrap_or(stream.first_offset);
            if reached != stream.next_offset {
                let Stream { topic, partition, next_offset, .. } = stream;
                self.wrong.push(format!("{topic}/{partition} stands at {next_offset}, its batches end at {reached}"));
            }
            if let Some((_, messages)) = self.topics.iter().find_map(|topic| topic.partition(stream)) {
                judged += messages.range(stream.first_offset..stream.next_offset).count();
            }
        }
        if self.wrong.is_empty() && judged as u64 != self.done.messages {
            self.wrong.push(format!("{judged} messages lie in the streams, {} have an outcome", self.done.messages));
        }
    }

    /// What stands at an offset that no event explains.
    fn strangers(&mut self) {
        if !self.wrong.is_empty() {
            return;
        }
        let Records { accepted, postings, incidents, .. } = &self.records;
        let dedup = accepted.keys().map(|at| (*at, "a dedup row"));
        let consequences =
            postings.keys().map(|at| (*at, "postings")).chain(incidents.keys().map(|at| (*at, "an incident")));
        for (at, what) in dedup.chain(consequences).collect::<Vec<_>>() {
            self.object(at, &format!("{what}, and no event was accepted there"));
        }
    }

    /// The tables end where the history ends.
    fn resources(&mut self) {
        for (resource, history) in &self.histories {
            let Some(History { held: Some(end), revision, unsure, .. }) = history else { continue };
            let held = self.records.resources.get(resource);
            let right = held.is_some_and(|held| {
                (&held.state, held.updated_at) == (&end.state, end.standing.1)
                    && end.facts.as_ref().is_none_or(|facts| *facts == held.facts)
                    && (revision - unsure..=*revision).contains(&held.revision)
            });
            if !right {
                let (kind, path) = resource;
                self.wrong.push(format!(
                    "{kind} {path} is held as {held:?}; its events end in {end:?} after {revision} changes"
                ));
            }
        }
        let strangers =
            self.records.resources.keys().filter(|resource| !self.histories.contains_key(*resource)).count();
        if self.wrong.is_empty() && strangers > 0 {
            self.wrong.push(format!("{strangers} resources without an event"));
        }
    }
}

impl Topic {
    fn read(bootstrap: &str, name: &str) -> Result<Self> {
        let probe: BaseConsumer = ClientConfig::new().set("bootstrap.servers", bootstrap).create()?;
        let Lineage { cluster_id: cluster, topic_id: id, .. } = lineage(probe.client(), name, false)?;
        let mut partitions = HashMap::new();
        let metadata = probe.fetch_metadata(Some(name), LIMIT)?;
        for partition in metadata.topics().iter().flat_map(|topic| topic.partitions()) {
            let (start, _) = watermarks(&probe, name, partition.id())?;
            partitions.insert(partition.id(), (start, BTreeMap::new()));
        }
        for message in read_all(bootstrap, name)? {
            let (partition, offset) = message.partition.zip(message.offset).context("a message without a place")?;
            partitions.entry(partition).or_default().1.insert(offset, message);
        }
        Ok(Self { cluster, name: name.to_owned(), id, partitions })
    }

    /// `None` if this is not the topic of the stream.
    fn partition(&self, stream: &Stream) -> Option<&(i64, BTreeMap<i64, Message>)> {
        let same = stream.cluster == self.cluster && stream.topic == self.name && stream.topic_id == self.id;
        self.partitions.get(&stream.partition).filter(|_| same)
    }
}

fn from_message(event: Event, row: Option<&Accepted>, at: At, letter: char) -> Result<(Resource, Arrival)> {
    let position = Some(position(&event)?);
    let Event { kind, state, place, resource, updated_at, fingerprint, id, facts, .. } = event;
    let updated_at = updated_at.as_microsecond();
    if let Some(row) = row {
        let told = (&row.id, &row.fingerprint, row.kind.as_str(), &row.path, row.state.as_str(), row.updated_at);
        let found = (&id, &fingerprint, kind.name, &resource, state.name, updated_at);
        ensure!(told == found, "its dedup row says {told:?}, the message {found:?}");
    }
    let arrival = Arrival {
        at,
        letter,
        id,
        fingerprint,
        standing: (state.rank, updated_at, place),
        state: state.name.to_owned(),
        position,
        facts: Some(Value::Object(facts)),
        posted: BTreeMap::new(),
        incidents: Vec::new(),
        previous_at: row.and_then(|row| row.previous_at),
    };
    Ok(((kind.name.to_owned(), resource), arrival))
}

fn from_row(terms: &Terms, row: &Accepted, at: At) -> Result<(Resource, Arrival)> {
    let version = model::version_at(terms.rules, Timestamp::from_microsecond(row.updated_at)?);
    let kind = version.kinds.iter().find(|kind| kind.name == row.kind).context("an unknown kind")?;
    let place = kind.states.iter().position(|state| state.name == row.state).context("an unknown state")?;
    let arrival = Arrival {
        at,
        letter: row.letter,
        id: row.id.clone(),
        fingerprint: row.fingerprint.clone(),
        standing: (kind.states[place].rank, row.updated_at, place),
        state: row.state.clone(),
        position: None,
        facts: None,
        posted: BTreeMap::new(),
        incidents: Vec::new(),
        previous_at: row.previous_at,
    };
    Ok(((row.kind.clone(), row.path.clone()), arrival))
}

fn position(event: &Event) -> Result<records::Pairs> {
    let mut pairs = records::Pairs::new();
    for line in model::lines(event)? {
        add(&mut pairs, &line.debit, &line.credit, &line.asset, line.amount);
    }
    pairs.retain(|_, amount| *amount != 0);
    Ok(pairs)
}

/// A message as the plain event that it is; CloudEvents in both modes brought into it.
fn plain(message: &Message) -> Result<String> {
    let value = message.value.as_deref().context("no value")?;
    let text = std::str::from_utf8(value)?;
    let header = |wanted: &str| {
        // Of a header that stands there twice the last counts.
        let found = message.headers.iter().rfind(|(name, _)| name == wanted);
        found.and_then(|(_, value)| value.as_deref()).map(String::from_utf8_lossy)
    };
    let structured =
        header("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with("application/cloudevents"));
    let event = if structured {
        let event: Value = serde_json::from_str(text)?;
        json!({"type": event["type"], "resource": event["subject"], "updatedAt": event["time"], "data": event["data"]})
    } else if header("ce_specversion").is_some() {
        let data: Value = serde_json::from_str(text)?;
        let [kind, subject, time] = ["ce_type", "ce_subject", "ce_time"].map(header);
        json!({"type": kind, "resource": subject, "updatedAt": time, "data": data})
    } else {
        return Ok(text.to_owned());
    };
    Ok(event.to_string())
}

/// The name of a message in quarantine. The mark of a copy that was sent again is no part
/// of it.
fn hash_of(message: &Message) -> String {
    let digest = |part: &Option<Vec<u8>>| part.as_ref().map_or([0; 32], |bytes| Sha256::digest(bytes).into());
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut headers = Sha256::new();
    for (name, value) in message.headers.iter().filter(|(name, _)| name != "postonce-retry") {
        headers.update(length(name.as_bytes()));
        headers.update(name);
        headers.update(value.as_ref().map_or([0xff; 4], |value| length(value)));
        headers.update(value.as_deref().unwrap_or_default());
    }
    let [key, value]: [[u8; 32]; 2] = [digest(&message.key), digest(&message.value)];
    model::hex(&Sha256::new().chain_update(key).chain_update(value).chain_update(headers.finalize()).finalize())
}
