//! One event of the workload and its JSON.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::Offset;

use super::world::Merchant;

/// The kinds of the built-in rules, without journals (a topic must be allowed
/// to carry those).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Payment,
    Fee,
    Refund,
    Dispute,
    Payout,
    Topup,
    Transfer,
    Settlement,
    Conversion,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Payment => "payment",
            Self::Fee => "fee",
            Self::Refund => "refund",
            Self::Dispute => "dispute",
            Self::Payout => "payout",
            Self::Topup => "topup",
            Self::Transfer => "transfer",
            Self::Settlement => "settlement",
            Self::Conversion => "conversion",
        }
    }

    /// How the ids of this kind begin.
    pub(super) fn id_prefix(self) -> &'static str {
        match self {
            Self::Payment => "pi",
            Self::Fee => "fee",
            Self::Refund => "re",
            Self::Dispute => "dp",
            Self::Payout => "po",
            Self::Topup => "tu",
            Self::Transfer => "tr",
            Self::Settlement => "se",
            Self::Conversion => "fx",
        }
    }
}

/// The states of all kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    Created,
    Authorized,
    Cancelled,
    Failed,
    Succeeded,
    Reversed,
    Charged,
    Inquiry,
    Opened,
    Won,
    Lost,
    Paid,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Authorized => "authorized",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Succeeded => "succeeded",
            Self::Reversed => "reversed",
            Self::Charged => "charged",
            Self::Inquiry => "inquiry",
            Self::Opened => "opened",
            Self::Won => "won",
            Self::Lost => "lost",
            Self::Paid => "paid",
        }
    }
}

/// `data`. What a kind does not have is absent.
#[derive(Clone, Debug, Default)]
pub(super) struct Data {
    pub(super) provider: Option<&'static str>,
    pub(super) merchant: Option<usize>,
    pub(super) customer: Option<u32>,
    pub(super) from: Option<u32>,
    pub(super) to: Option<u32>,
    pub(super) bank: Option<&'static str>,
    pub(super) currency: &'static str,
    /// Minor units of `currency`.
    pub(super) amount: u64,
    /// Minor units of `currency`.
    pub(super) fee: Option<u64>,
    /// Minor units of `to_currency`.
    pub(super) to_amount: Option<u64>,
    pub(super) to_currency: Option<&'static str>,
    /// The resource of the payment that this belongs to.
    pub(super) payment: Option<Arc<str>>,
    /// Not read by the ledger.
    pub(super) method: Option<&'static str>,
}

impl Data {
    pub(super) fn of(merchant: &Merchant, amount: u64) -> Self {
        Self {
            provider: Some(merchant.provider.name),
            merchant: Some(merchant.number),
            currency: merchant.currency.code,
            amount,
            ..Self::default()
        }
    }
}

/// One event: what happened to which resource, and when.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub(super) kind: Kind,
    pub(super) state: State,
    pub(super) resource: Arc<str>,
    pub(super) updated_at: Timestamp,
    pub(super) source: &'static str,
    pub(super) data: Data,
}

/// Ways to write the same event. None of them changes its id or fingerprint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Style {
    /// White space around the tokens.
    pub(super) spaced: bool,
    /// Members in the opposite order.
    pub(super) reversed: bool,
    /// The time at another offset, with more zeros than needed.
    pub(super) other_offset: bool,
    /// Told by another region than the first time.
    pub(super) source: Option<&'static str>,
}

/// Members of a JSON object, name and JSON value, in the order of writing.
pub(super) type Members = Vec<(&'static str, String)>;

impl Fact {
    /// The event's JSON, about 300 bytes.
    pub(super) fn json(&self, style: Style) -> String {
        let mut json = String::with_capacity(352);
        let mut envelope = Writer::begin(&mut json, style);
        for place in order(5, style) {
            match place {
                0 => envelope.member("type", format_args!("\"{}.{}\"", self.kind.name(), self.state.name())),
                1 => envelope.member("resource", format_args!("\"{}\"", self.resource)),
                2 if style.other_offset => {
                    let at = self.updated_at.display_with_offset(Offset::constant(2));
                    envelope.member("updatedAt", format_args!("\"{at:.9}\""));
                }
                2 => envelope.member("updatedAt", format_args!("\"{:.6}\"", self.updated_at)),
                3 => envelope.member("source", format_args!("\"{}\"", style.source.unwrap_or(self.source))),
                _ => {
                    envelope.name("data");
                    self.data.write(envelope.json, style);
                }
            }
        }
        envelope.end();
        json
    }

    /// The members one by one, for poison to be put among them.
    pub(super) fn envelope(&self) -> Members {
        vec![
            ("type", format!("\"{}.{}\"", self.kind.name(), self.state.name())),
            ("resource", format!("\"{}\"", self.resource)),
            ("updatedAt", format!("\"{:.6}\"", self.updated_at)),
            ("source", format!("\"{}\"", self.source)),
        ]
    }
}

impl Data {
    fn write(&self, json: &mut String, style: Style) {
        let mut data = Writer::begin(json, style);
        for place in order(13, style) {
            match place {
                0 => data.text("provider", self.provider),
                1 => data.numbered("merchant", "m_", self.merchant),
                2 => data.numbered("customer", "cus_", self.customer),
                3 => data.numbered("from", "cus_", self.from),
                4 => data.numbered("to", "cus_", self.to),
                5 => data.text("bank", self.bank),
                6 => data.text("currency", Some(self.currency)),
                7 => data.number("amount", Some(self.amount)),
                8 => data.number("fee", self.fee),
                9 => data.number("to_amount", self.to_amount),
                10 => data.text("to_currency", self.to_currency),
                11 => data.text("payment", self.payment.as_deref()),
                _ => data.text("method", self.method),
            }
        }
        data.end();
    }
}

fn order(count: usize, style: Style) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| if style.reversed { count - 1 - place } else { place })
}

/// Writes one JSON object. Its strings are known to need no escapes. Writing
/// into a `String` cannot fail, so the results are dropped.
struct Writer<'a> {
    json: &'a mut String,
    spaced: bool,
    first: bool,
}

impl<'a> Writer<'a> {
    fn begin(json: &'a mut String, style: Style) -> Self {
        json.push_str(if style.spaced { "{ " } else { "{" });
        Self { json, spaced: style.spaced, first: true }
    }

    fn name(&mut self, name: &str) {
        if !std::mem::take(&mut self.first) {
            self.json.push_str(if self.spaced { " ,\t" } else { "," });
        }
        self.json.push('"');
        self.json.push_str(name);
        self.json.push_str(if self.spaced { "\" : " } else { "\":" });
    }

    fn member(&mut self, name: &str, value: std::fmt::Arguments<'_>) {
        self.name(name);
        let _ = self.json.write_fmt(value);
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.member(name, format_args!("\"{value}\""));
        }
    }

    fn number(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.member(name, format_args!("{value}"));
        }
    }

    fn numbered<N: std::fmt::Display>(&mut self, name: &str, prefix: &str, value: Option<N>) {
        if let Some(value) = value {
            self.member(name, format_args!("\"{prefix}{value:05}\""));
        }
    }

    fn end(self) {
        self.json.push_str(if self.spaced { " }" } else { "}" });
    }
}
