//! The sums of both sides, compared.

use super::report::{Check, Finding, Findings};
use super::resources::Resources;
use super::sums::Sums;

/// Balances, positions and postings of each account; each asset's trial balance.
pub fn accounts(sums: &Sums, findings: &mut Findings) {
    let mut totals = vec![0i128; sums.assets.len()];
    let mut sorted: Vec<_> = sums.accounts().collect();
    sorted.sort_unstable_by_key(|(id, _)| *id);
    for (id, account) in sorted {
        let side = |(debits, credits): (i128, i128)| format!("{debits} - {credits}");
        let (debits, credits) = account.before;
        let posted = (debits.wrapping_add(account.sums.debits), credits.wrapping_add(account.sums.credits));
        let balance = account.balance.unwrap_or_default();
        if balance != posted {
            let what = "the balance is not the sum of its postings (debits - credits)";
            let finding = Finding::new(what).account(id).instead(side(posted), side(balance));
            findings.add(Check::Balances, finding);
        }
        if account.asset.is_none() {
            let what = "an account without a row in `accounts`: what it is nobody can tell";
            findings.add(Check::Accounts, Finding::new(what).account(id));
        }
        if account.sums.held != account.sums.posted {
            let what = "the net of the postings is not what the resources hold by their facts";
            let finding = Finding::new(what).account(id).instead(account.sums.held, account.sums.posted);
            findings.add(Check::Positions, finding);
        }
        if account.sums.expected_rows != account.sums.found_rows {
            let what = "its rows in `account_postings` are not those that follow from its postings: a statement would \
                        leave some out, or tell of some twice";
            findings.add(Check::AccountPostings, Finding::new(what).account(id));
        }
        if let Some(total) = account.asset.and_then(|asset| totals.get_mut(asset)) {
            *total = total.wrapping_add(balance.0).wrapping_sub(balance.1);
        }
        findings.compared(Check::Balances, 1);
    }
    trial_balance(sums, &totals, findings);
}

fn trial_balance(sums: &Sums, totals: &[i128], findings: &mut Findings) {
    findings.compared(Check::TrialBalance, u64::try_from(totals.len()).unwrap_or(u64::MAX));
    for (asset, total) in sums.assets.iter().zip(totals).filter(|(_, total)| **total != 0) {
        let finding = Finding::new("debits and credits differ").instead(0, total);
        findings.add(Check::TrialBalance, Finding { asset: Some(asset.clone()), ..finding });
    }
}

/// Each refused message is counted in `quarantine`.
pub fn quarantine(rejected: u64, quarantined: i128, findings: &mut Findings) {
    findings.compared(Check::Quarantine, rejected);
    if i128::from(rejected) != quarantined {
        let what = "offsets that were rejected, and times that `quarantine` has seen a message";
        findings.add(Check::Quarantine, Finding::new(what).instead(rejected, quarantined));
    }
}

/// Resources with conflicts: how many of those became the state no row says, but not
/// more than there are.
pub fn contested(resources: &Resources, findings: &mut Findings) {
    for (id, contested) in &resources.contested {
        let by_conflict = contested.revision - contested.changes;
        if !(0..=contested.conflicts).contains(&by_conflict) {
            let what = "the resource's revision is not the number of its changes";
            let expected = format!("{} to {}", contested.changes, contested.changes + contested.conflicts);
            let finding = Finding::new(what).resource(*id).instead(expected, contested.revision);
            findings.add(Check::Resources, finding);
        }
    }
}
