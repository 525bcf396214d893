//! How a resource begins, what becomes of it, and what it draws after it.

use std::sync::Arc;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::fact::{Data, Kind, State};
use super::world::{self, Merchant, World};

/// A resource and the state that its next event tells.
#[derive(Clone, Debug)]
pub(super) struct Lifecycle {
    pub(super) kind: Kind,
    pub(super) state: State,
    pub(super) resource: Arc<str>,
    pub(super) data: Data,
    /// For those that may draw refunds, disputes and fees after them.
    merchant: Option<Merchant>,
    /// The fee that the state with money in it will name.
    fee: u64,
}

/// Makes resources with ids that never repeat within one workload.
pub(super) struct Nursery {
    world: World,
    made: u64,
}

/// What may follow a state: chances in 1,000 (the rest: nothing follows), and
/// how many events later.
type Transitions = (&'static [(u32, State)], std::ops::Range<u64>);

fn transitions(kind: Kind, state: State) -> Transitions {
    use Kind::{Conversion, Dispute, Fee, Payment, Payout, Refund, Settlement, Topup, Transfer};
    use State::{
        Authorized, Cancelled, Charged, Created, Failed, Inquiry, Lost, Opened, Paid, Reversed, Succeeded, Won,
    };
    match (kind, state) {
        (Payment, Created) => (&[(850, Authorized), (80, Failed), (70, Cancelled)], 1..30),
        (Payment, Authorized) => (&[(920, Succeeded), (40, Cancelled), (40, Failed)], 5..300),
        // Reversed; the amount restated by a second `succeeded`; a late `failed`.
        (Payment, Succeeded) => (&[(20, Reversed), (10, Succeeded), (3, Failed)], 50..2_000),
        // Captured again; paid at the second try.
        (Payment, Reversed) => (&[(400, Succeeded)], 50..1_000),
        (Payment, Failed) => (&[(100, Succeeded)], 20..500),
        (Fee, Charged) => (&[(50, Reversed)], 100..2_000),
        (Refund, Created) => (&[(930, Succeeded), (50, Failed), (20, Cancelled)], 10..500),
        (Refund, Succeeded) => (&[(10, Failed)], 500..3_000),
        (Dispute, Inquiry) => (&[(600, Opened)], 200..2_000),
        (Dispute, Opened) => (&[(400, Won), (550, Lost)], 500..5_000),
        // Arbitration.
        (Dispute, Lost) => (&[(80, Won)], 500..3_000),
        (Payout, Created) => (&[(950, Paid), (40, Failed), (10, Cancelled)], 50..800),
        // Sent back by the bank.
        (Payout, Paid) => (&[(10, Failed)], 300..3_000),
        (Topup | Transfer | Settlement | Conversion, Created) => (&[(950, Succeeded), (50, Failed)], 2..200),
        (Topup | Transfer, Succeeded) => (&[(10, Reversed)], 100..2_000),
        (Settlement | Conversion, Succeeded) => (&[(3, Reversed)], 200..2_000),
        _ => (&[], 1..2),
    }
}

impl Nursery {
    /// With resources of these numbers; a number becomes an id of its own.
    pub(super) fn from(first_resource: u64) -> Self {
        Self { world: World::new(), made: first_resource }
    }

    /// A new resource that no other draws after it.
    pub(super) fn begin(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        match rng.random_range(0..100_u32) {
            0..=67 => self.payment(rng),
            68..=79 => self.topup(rng),
            80..=88 => self.transfer(rng),
            89..=94 => self.payout(rng),
            95..=97 => self.settlement(rng),
            _ => self.conversion(rng),
        }
    }

    pub(super) fn payment(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        let merchant = self.world.merchant(rng);
        let amount = merchant.currency.amount_of(world::price(rng));
        let mut data = Data::of(&merchant, amount);
        data.method = Some(world::METHODS[rng.random_range(0..world::METHODS.len())]);
        // Some providers tell only the capture.
        let first = if rng.random_ratio(1, 4) { State::Succeeded } else { State::Created };
        let mut payment = self.of_merchant(Kind::Payment, first, merchant, data);
        if !merchant.billed_apart {
            payment.fee = world::fee(amount, merchant.currency);
        }
        payment
    }

    fn payout(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        let merchant = self.world.merchant(rng);
        let amount = merchant.currency.amount_of(rng.random_range(1_000..20_000));
        self.of_merchant(Kind::Payout, State::Created, merchant, Data::of(&merchant, amount))
    }

    fn topup(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        let customer = self.world.customer(rng);
        let currency = world::currency_of_customer(customer);
        let provider = world::provider(rng);
        let data = Data {
            provider: Some(provider.name),
            customer: Some(customer),
            currency: currency.code,
            amount: currency.amount_of(rng.random_range(1..=40_u64) * 500),
            ..Data::default()
        };
        self.of_platform(Kind::Topup, provider.name, data)
    }

    fn transfer(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        let (from, to) = (self.world.customer(rng), self.world.customer(rng));
        let currency = world::currency_of_customer(from);
        let data = Data {
            from: Some(from),
            to: Some(to),
            currency: currency.code,
            amount: currency.amount_of(world::price(rng)),
            ..Data::default()
        };
        self.of_platform(Kind::Transfer, "wallet", data)
    }

    fn settlement(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        let provider = world::provider(rng);
        let (currency, _) = world::currency_pair(rng);
        let amount = currency.amount_of(rng.random_range(5_000..120_000));
        let data = Data {
            provider: Some(provider.name),
            bank: Some(world::bank(rng)),
            currency: currency.code,
            amount,
            ..Data::default()
        };
        let mut settlement = self.of_platform(Kind::Settlement, provider.name, data);
        // A wire costs the same whatever it carries; some providers pay for it.
        settlement.fee = if rng.random_ratio(1, 3) { 0 } else { currency.amount_of(25) };
        settlement
    }

    fn conversion(&mut self, rng: &mut ChaCha8Rng) -> Lifecycle {
        let provider = world::provider(rng);
        let (from, to) = world::currency_pair(rng);
        let amount = from.amount_of(rng.random_range(2_000..40_000));
        let data = Data {
            provider: Some(provider.name),
            currency: from.code,
            amount,
            to_amount: Some(from.convert(amount, to)),
            to_currency: Some(to.code),
            ..Data::default()
        };
        self.of_platform(Kind::Conversion, provider.name, data)
    }

    fn of_merchant(&mut self, kind: Kind, state: State, merchant: Merchant, data: Data) -> Lifecycle {
        let Merchant { provider, number, .. } = merchant;
        let resource = format!("{}/{}{number:05}/{}", provider.name, provider.account, self.id(kind)).into();
        Lifecycle { kind, state, resource, data, merchant: Some(merchant), fee: 0 }
    }

    fn of_platform(&mut self, kind: Kind, provider: &str, data: Data) -> Lifecycle {
        let resource = format!("{provider}/platform/{}", self.id(kind)).into();
        Lifecycle { kind, state: State::Created, resource, data, merchant: None, fee: 0 }
    }

    /// An odd factor is one-to-one modulo 2^64: the ids look random and never
    /// repeat.
    fn id(&mut self, kind: Kind) -> String {
        self.made += 1;
        format!("{}_{:016x}", kind.id_prefix(), self.made.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Hands what follows this event to `later`, each with the number of
    /// events to wait.
    pub(super) fn follow(&mut self, now: &Lifecycle, rng: &mut ChaCha8Rng, mut later: impl FnMut(u64, Lifecycle)) {
        let (choices, delays) = transitions(now.kind, now.state);
        if let Some(state) = choose(choices, rng) {
            let mut next = now.clone();
            next.state = state;
            if (now.kind, now.state, state) == (Kind::Payment, State::Succeeded, State::Succeeded) {
                // A total of the payment, not a delta: a tip was added.
                next.data.amount += 1 + now.data.amount / 10;
            }
            later(rng.random_range(delays), next);
        }
        if let (Kind::Payment, State::Succeeded, Some(merchant)) = (now.kind, now.state, now.merchant) {
            self.after_payment(now, merchant, rng, &mut later);
        }
    }

    fn after_payment(
        &mut self,
        payment: &Lifecycle,
        merchant: Merchant,
        rng: &mut ChaCha8Rng,
        later: &mut impl FnMut(u64, Lifecycle),
    ) {
        let amount = payment.data.amount;
        let data = |amount| Data { payment: Some(Arc::clone(&payment.resource)), ..Data::of(&merchant, amount) };
        match rng.random_range(0..1_000_u32) {
            0..=59 => {
                let part = if rng.random_ratio(3, 5) { amount } else { rng.random_range(1..=amount) };
                let refund = self.of_merchant(Kind::Refund, State::Created, merchant, data(part));
                later(rng.random_range(200..4_000), refund);
            }
            60..=71 => {
                let first = if rng.random_ratio(3, 10) { State::Inquiry } else { State::Opened };
                let mut dispute = self.of_merchant(Kind::Dispute, first, merchant, data(amount));
                dispute.fee = merchant.currency.amount_of(1_500);
                later(rng.random_range(500..6_000), dispute);
            }
            _ => {}
        }
        if merchant.billed_apart {
            let fee = data(world::fee(amount, merchant.currency));
            let fee = self.of_merchant(Kind::Fee, State::Charged, merchant, fee);
            later(rng.random_range(5..500), fee);
        }
    }
}

impl Lifecycle {
    /// `data` as this state tells it: the fee is named by the states whose
    /// position it belongs to, 0 if there is none.
    pub(super) fn data(&self) -> Data {
        let fee = match (self.kind, self.state) {
            (Kind::Payment | Kind::Settlement, State::Succeeded)
            | (Kind::Dispute, State::Opened | State::Won | State::Lost) => Some(self.fee),
            _ => None,
        };
        Data { fee, ..self.data.clone() }
    }
}

fn choose(choices: &[(u32, State)], rng: &mut ChaCha8Rng) -> Option<State> {
    if choices.is_empty() {
        return None;
    }
    let mut point = rng.random_range(0..1_000_u32);
    for (chance, state) in choices {
        if point < *chance {
            return Some(*state);
        }
        point -= chance;
    }
    None
}
