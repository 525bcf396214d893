//! The tests on real parts: one program with a main of its own, so that broker
//! and server start once for a run, and stop at its end whatever happened.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::as_conversions,
    reason = "in a test a panic is the report of a failure"
)]

mod auditor;
mod cases;
mod deploy;
mod envelopes;
mod export;
mod faults_accept;
mod faults_clock;
mod faults_cluster;
mod faults_disk;
mod faults_frozen;
mod faults_kill;
mod faults_log;
mod faults_network;
mod faults_outage;
mod faults_races;
mod faults_restore;
mod faults_transaction;
mod faults_traps;
mod hostile;
mod kafka;
mod ledger;
mod metrics;
mod mirror;
mod model;
mod parts;
mod poison;
mod ports;
mod proof;
mod reading;
mod real_input;
mod rebuild;
mod replay;
mod roles;
mod rules;
mod secured;
mod settings;
mod soak;
mod statements;
mod trace;
mod traces;
mod verify;
mod verify_since;
mod verify_topic;
mod versions;
mod watch;

use libtest_mimic::{Arguments, run};

/// Each test keeps a consumer, the broker and the server busy; more of them at
/// once only wait for each other on a small machine.
const THREADS: usize = 2;

fn main() {
    if std::env::var_os(parts::HOLD).is_some() {
        return parts::hold_until_killed();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    let tests = [
        // The longest first: it does not wait for a free thread at the end.
        soak::tests(),
        real_input::tests(),
        model::tests(),
        faults_kill::tests(),
        faults_cluster::tests(),
        faults_outage::tests(),
        watch::tests(),
        cases::tests(),
        export::tests(),
        faults_network::tests(),
        auditor::tests(),
        deploy::tests(),
        envelopes::tests(),
        faults_clock::tests(),
        faults_disk::tests(),
        faults_accept::tests(),
        faults_frozen::tests(),
        faults_log::tests(),
        faults_races::tests(),
        faults_restore::tests(),
        faults_transaction::tests(),
        faults_traps::tests(),
        hostile::tests(),
        kafka::tests(),
        ledger::tests(),
        metrics::tests(),
        mirror::tests(),
        parts::tests(),
        poison::tests(),
        ports::tests(),
        proof::tests(),
        reading::tests(),
        rebuild::tests(),
        replay::tests(),
        roles::tests(),
        statements::tests(),
        rules::tests(),
        secured::tests(),
        settings::tests(),
        trace::tests(),
        traces::tests(),
        verify::tests(),
        verify_since::tests(),
        verify_topic::tests(),
        versions::tests(),
    ];
    let tests = tests.into_iter().flatten().collect();
    let conclusion = run(&arguments, tests);
    postonce_tests::stop_parts();
    conclusion.exit();
}
