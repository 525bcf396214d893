//! Messages that the ledger must refuse, one class for each way to be wrong.

use super::fact::{Fact, Members, Style};

/// A value that no reader may take: one byte more than the ledger allows.
const TOO_LARGE_BYTES: usize = 1_048_577;

macro_rules! poisons {
    ($($(#[$doc:meta])* $variant:ident $name:literal $code:literal,)*) => {
        /// A way in which a message is wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Poison {
            $($(#[$doc])* $variant,)*
        }

        impl Poison {
            /// Every class.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// A stable name, for summaries.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The code under which the ledger refuses it.
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }
        }
    };
}

poisons! {
    /// A null value.
    Tombstone "tombstone" "empty",
    /// No bytes.
    Empty "empty" "empty",
    NotUtf8 "not_utf8" "not_utf8",
    NotJson "not_json" "bad_json",
    NotAnObject "not_an_object" "bad_json",
    /// Cut off in the middle.
    Truncated "truncated" "bad_json",
    /// Two events in one message.
    TwoObjects "two_objects" "bad_json",
    /// Begins with a byte order mark.
    ByteOrderMark "byte_order_mark" "bad_json",
    /// Over 1 MiB; at most one in a workload.
    TooLarge "too_large" "too_large",
    /// Nested deeper than 127.
    TooDeep "too_deep" "too_deep",
    RepeatedType "repeated_type" "repeated_key",
    RepeatedAmount "repeated_amount" "repeated_key",
    MissingType "missing_type" "missing_field",
    MissingResource "missing_resource" "missing_field",
    MissingTime "missing_time" "missing_field",
    MissingData "missing_data" "missing_field",
    MissingAmount "missing_amount" "missing_field",
    /// No fee is 0, not silence.
    MissingFee "missing_fee" "missing_field",
    MissingCurrency "missing_currency" "missing_field",
    /// No account to post to.
    MissingMerchant "missing_merchant" "missing_field",
    NullMerchant "null_merchant" "wrong_type",
    DataNotAnObject "data_not_an_object" "wrong_type",
    /// Not two parts, or upper case.
    BadType "bad_type" "bad_type",
    UnknownKind "unknown_kind" "unknown_type",
    UnknownState "unknown_state" "unknown_type",
    EmptyResource "empty_resource" "bad_resource",
    LongResource "long_resource" "bad_resource",
    ControlInResource "control_in_resource" "bad_resource",
    EmptyMerchant "empty_merchant" "bad_text",
    LongMerchant "long_merchant" "bad_text",
    NotATime "not_a_time" "bad_time",
    TimeWithSpace "time_with_space" "bad_time",
    TimeWithoutOffset "time_without_offset" "bad_time",
    LeapSecond "leap_second" "bad_time",
    OffsetTooLarge "offset_too_large" "bad_time",
    TimeBefore1970 "time_before_1970" "bad_time",
    /// More than a day ahead of Kafka's clock.
    FutureTime "future_time" "future_time",
    NegativeAmount "negative_amount" "bad_amount",
    MinusZero "minus_zero" "bad_amount",
    DecimalAmount "decimal_amount" "bad_amount",
    ExponentAmount "exponent_amount" "bad_amount",
    /// Above 2^53 - 1.
    HugeAmount "huge_amount" "bad_amount",
    TextAmount "text_amount" "bad_amount",
    /// ISO 4217 for "no currency".
    NoCurrency "no_currency" "unknown_currency",
    LowerCaseCurrency "lower_case_currency" "unknown_currency",
    /// Gold.
    Metal "metal" "unknown_currency",
}

impl Poison {
    /// Whether it can stand in a JSONL file that `postonce send` takes as it
    /// is: one line, one JSON object, a resource to choose the key by.
    pub fn fits_line(self) -> bool {
        !matches!(
            self,
            Self::Tombstone
                | Self::Empty
                | Self::NotUtf8
                | Self::NotJson
                | Self::NotAnObject
                | Self::Truncated
                | Self::TwoObjects
                | Self::ByteOrderMark
                | Self::MissingResource
        )
    }

    /// The spoilt form of a payment that has succeeded.
    pub(super) fn value(self, good: &Fact) -> Option<Vec<u8>> {
        let json = || good.json(Style::default());
        match self {
            Self::Tombstone => None,
            Self::Empty => Some(Vec::new()),
            Self::NotUtf8 => {
                let mut bytes = json().into_bytes();
                // Inside the first string: 0xFF never occurs in UTF-8.
                bytes.splice(2..2, [0xFF]);
                Some(bytes)
            }
            Self::NotJson => Some(format!("{}.{} {}", good.kind.name(), good.state.name(), good.resource).into_bytes()),
            Self::NotAnObject => Some(format!("[{}]", json()).into_bytes()),
            Self::Truncated => {
                let mut bytes = json().into_bytes();
                bytes.truncate(bytes.len() / 2);
                Some(bytes)
            }
            Self::TwoObjects => Some(json().repeat(2).into_bytes()),
            Self::ByteOrderMark => Some(format!("\u{feff}{}", json()).into_bytes()),
            _ => Some(self.spoilt_member(good).into_bytes()),
        }
    }

    fn spoilt_member(self, good: &Fact) -> String {
        let mut envelope = good.envelope();
        let mut data = vec![
            ("provider", quoted(good.data.provider.unwrap_or("stripe"))),
            ("merchant", format!("\"m_{:05}\"", good.data.merchant.unwrap_or_default())),
            ("currency", quoted(good.data.currency)),
            ("amount", good.data.amount.to_string()),
            ("fee", good.data.fee.unwrap_or_default().to_string()),
        ];
        if let Some((name, value)) = self.data_member(good) {
            replace(&mut data, name, value);
        }
        match self {
            Self::RepeatedAmount => data.push(("amount", good.data.amount.to_string())),
            Self::RepeatedType => envelope.push(("type", "\"payment.failed\"".to_owned())),
            Self::TooDeep => data.push(("note", format!("{}{}", "[".repeat(130), "]".repeat(130)))),
            _ => {}
        }
        envelope.push(("data", object(&data)));
        if let Some((name, value)) = self.envelope_member(good) {
            replace(&mut envelope, name, value);
        }
        if self == Self::TooLarge {
            let rest = object(&envelope).len() + ",\"note\":\"\"".len();
            envelope.push(("note", quoted(&"x".repeat(TOO_LARGE_BYTES.saturating_sub(rest)))));
        }
        object(&envelope)
    }

    /// The envelope's member that is wrong, and its value; none: left out.
    fn envelope_member(self, good: &Fact) -> Option<(&'static str, Option<String>)> {
        let at = format!("{:.6}", good.updated_at);
        let time = |value: String| Some(("updatedAt", Some(value)));
        match self {
            Self::MissingType => Some(("type", None)),
            Self::MissingResource => Some(("resource", None)),
            Self::MissingTime => Some(("updatedAt", None)),
            Self::MissingData => Some(("data", None)),
            Self::DataNotAnObject => Some(("data", Some("[1,2]".to_owned()))),
            Self::BadType => Some(("type", Some(quoted("Payment.Succeeded")))),
            Self::UnknownKind => Some(("type", Some(quoted("lottery.won")))),
            Self::UnknownState => Some(("type", Some(quoted("payment.teleported")))),
            Self::EmptyResource => Some(("resource", Some(quoted("")))),
            Self::LongResource => Some(("resource", Some(quoted(&format!("{}/{}", good.resource, "x".repeat(256)))))),
            Self::ControlInResource => Some(("resource", Some(format!("\"{}\\u0000{}\"", good.resource, "x")))),
            Self::NotATime => time(quoted("yesterday")),
            Self::TimeWithSpace => time(quoted(&at.replace('T', " "))),
            Self::TimeWithoutOffset => time(quoted(at.trim_end_matches('Z'))),
            Self::LeapSecond => time(quoted("2016-12-31T23:59:60Z")),
            Self::OffsetTooLarge => time(quoted(&at.replace('Z', "+25:00"))),
            Self::TimeBefore1970 => time(quoted("1969-12-31T23:59:59.999999Z")),
            Self::FutureTime => time(quoted(&at.replacen(&at[..4], "2999", 1))),
            _ => None,
        }
    }

    /// The member of `data` that is wrong, and its value; none: left out.
    fn data_member(self, good: &Fact) -> Option<(&'static str, Option<String>)> {
        let amount = good.data.amount;
        let wrong = |value: String| Some(("amount", Some(value)));
        match self {
            Self::MissingAmount => Some(("amount", None)),
            Self::MissingFee => Some(("fee", None)),
            Self::MissingCurrency => Some(("currency", None)),
            Self::MissingMerchant => Some(("merchant", None)),
            Self::NullMerchant => Some(("merchant", Some("null".to_owned()))),
            Self::EmptyMerchant => Some(("merchant", Some(quoted("")))),
            Self::LongMerchant => Some(("merchant", Some(quoted(&"m".repeat(129))))),
            Self::NegativeAmount => wrong(format!("-{amount}")),
            Self::MinusZero => wrong("-0".to_owned()),
            Self::DecimalAmount => wrong(format!("{amount}.0")),
            Self::ExponentAmount => wrong(format!("{amount}e2")),
            Self::HugeAmount => wrong("9007199254740992".to_owned()),
            Self::TextAmount => wrong(quoted(&amount.to_string())),
            Self::NoCurrency => Some(("currency", Some(quoted("XXX")))),
            Self::LowerCaseCurrency => Some(("currency", Some(quoted(&good.data.currency.to_lowercase())))),
            Self::Metal => Some(("currency", Some(quoted("XAU")))),
            _ => None,
        }
    }
}

fn replace(members: &mut Members, name: &str, value: Option<String>) {
    match value {
        None => members.retain(|(member, _)| *member != name),
        Some(value) => {
            for (member, old) in members.iter_mut() {
                if *member == name {
                    old.clone_from(&value);
                }
            }
        }
    }
}

/// Needs no escapes: see the callers.
fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn object(members: &Members) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", members.join(","))
}
