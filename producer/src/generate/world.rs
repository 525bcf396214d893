//! Who pays whom in the workload: providers, merchants, customers, banks, and
//! what things cost in each currency. Whole numbers only, so that the same
//! seed gives the same bytes on every machine.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

const MERCHANTS: usize = 5_000;
const CUSTOMERS: u32 = 50_000;

/// An ISO 4217 currency and its price level.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Currency {
    pub(super) code: &'static str,
    /// Minor units for one US cent, as a fraction: yen have no decimals, a
    /// Kuwaiti dinar has three.
    minor_units: (u64, u64),
}

impl Currency {
    /// An amount of US cents at this currency's price level, at least 1.
    pub(super) fn amount_of(&self, cents: u64) -> u64 {
        (cents * self.minor_units.0 / self.minor_units.1).max(1)
    }

    /// The same value in another currency.
    pub(super) fn convert(&self, amount: u64, to: &Currency) -> u64 {
        to.amount_of(amount * self.minor_units.1 / self.minor_units.0)
    }
}

const fn currency(code: &'static str, minor_units: u64, for_cents: u64) -> Currency {
    Currency { code, minor_units: (minor_units, for_cents) }
}

static USD: Currency = currency("USD", 1, 1);
static EUR: Currency = currency("EUR", 9, 10);
static GBP: Currency = currency("GBP", 4, 5);
static JPY: Currency = currency("JPY", 3, 2);
static KWD: Currency = currency("KWD", 3, 1);
static SEK: Currency = currency("SEK", 10, 1);
static CHF: Currency = currency("CHF", 9, 10);
static BRL: Currency = currency("BRL", 5, 1);
static INR: Currency = currency("INR", 83, 1);
static TWD: Currency = currency("TWD", 31, 1);

/// Repeated by their share of the merchants.
static CURRENCIES: [&Currency; 20] = [
    &USD, &EUR, &USD, &GBP, &EUR, &USD, &JPY, &EUR, &USD, &SEK, &USD, &EUR, &GBP, &USD, &TWD, &EUR, &KWD, &BRL, &CHF,
    &INR,
];

/// A payment service provider and how it names the accounts of its customers.
#[derive(Debug)]
pub(super) struct Provider {
    pub(super) name: &'static str,
    pub(super) account: &'static str,
}

static PROVIDERS: [Provider; 5] = [
    Provider { name: "stripe", account: "acct_" },
    Provider { name: "adyen", account: "Shop" },
    Provider { name: "paypal", account: "mid-" },
    Provider { name: "checkout", account: "ent_" },
    Provider { name: "mollie", account: "org_" },
];

static BANKS: [&str; 4] = ["seb-5012", "barclays-4410", "jpmorgan-9001", "mufg-0005"];

pub(super) static METHODS: [&str; 5] = ["card", "card", "card", "wallet", "bank_debit"];

/// What a merchant's number decides once and for all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merchant {
    pub(super) number: usize,
    pub(super) provider: &'static Provider,
    pub(super) currency: &'static Currency,
    /// Its fees come as events of their own, so its payments carry `fee: 0`.
    pub(super) billed_apart: bool,
}

/// The merchants' popularity.
pub(super) struct World {
    /// Running sums of 1/rank (Zipf's law): the first merchant has a tenth of
    /// the payments, half of them come from the first seventy.
    popularity: Vec<u64>,
}

impl World {
    pub(super) fn new() -> Self {
        let popularity = (1_u64..)
            .take(MERCHANTS)
            .scan(0_u64, |sum, rank| {
                *sum += 1_000_000_000 / rank;
                Some(*sum)
            })
            .collect();
        Self { popularity }
    }

    pub(super) fn merchant(&self, rng: &mut ChaCha8Rng) -> Merchant {
        let all = self.popularity.last().copied().unwrap_or(1);
        let point = rng.random_range(0..all);
        let number = self.popularity.partition_point(|sum| *sum <= point);
        Merchant {
            number,
            // Coprime steps, so that each provider has merchants of every
            // currency and of every size.
            provider: &PROVIDERS[number % PROVIDERS.len()],
            currency: CURRENCIES[(number * 7 + number / 20) % CURRENCIES.len()],
            billed_apart: number % 9 == 4,
        }
    }

    pub(super) fn customer(&self, rng: &mut ChaCha8Rng) -> u32 {
        rng.random_range(0..CUSTOMERS)
    }
}

/// A wallet holds the currency of its owner.
pub(super) fn currency_of_customer(customer: u32) -> &'static Currency {
    pick(&CURRENCIES, customer).copied().unwrap_or(&USD)
}

pub(super) fn provider(rng: &mut ChaCha8Rng) -> &'static Provider {
    &PROVIDERS[rng.random_range(0..PROVIDERS.len())]
}

pub(super) fn bank(rng: &mut ChaCha8Rng) -> &'static str {
    BANKS[rng.random_range(0..BANKS.len())]
}

/// Two different currencies.
pub(super) fn currency_pair(rng: &mut ChaCha8Rng) -> (&'static Currency, &'static Currency) {
    let from = CURRENCIES[rng.random_range(0..CURRENCIES.len())];
    let to = CURRENCIES[rng.random_range(0..CURRENCIES.len())];
    if from != to {
        return (from, to);
    }
    (from, if *from == USD { &EUR } else { &USD })
}

/// The price of a purchase in US cents: mostly small, now and then large.
pub(super) fn price(rng: &mut ChaCha8Rng) -> u64 {
    match rng.random_range(0..100_u32) {
        0..=59 => rng.random_range(300..5_000),
        60..=89 => rng.random_range(5_000..25_000),
        90..=98 => rng.random_range(25_000..200_000),
        _ => rng.random_range(200_000..2_000_000),
    }
}

/// What the provider keeps of a payment: 2.9 % and 30 cents, never the whole.
pub(super) fn fee(amount: u64, currency: &Currency) -> u64 {
    (amount * 29 / 1_000 + currency.amount_of(30)).min(amount)
}

fn pick<T>(list: &[T], number: u32) -> Option<&T> {
    let number = usize::try_from(number).unwrap_or_default();
    list.get(number % list.len().max(1))
}
