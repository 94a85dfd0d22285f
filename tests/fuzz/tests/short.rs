//! A short run of each target with a fixed seed: what it finds is a regression.

use std::sync::Arc;

use sluice_fuzz::run::{Run, Tally};
use sluice_fuzz::seeds::Seeds;
use sluice_fuzz::{csr, identity, jwt, objects, patches, xds};
use sluice_testkit::parity::case::root;

/// Turns and not seconds, so that each run is the same.
const TURNS: u64 = 240;

fn seeds() -> Seeds {
    Seeds::read(&root()).expect("the cases")
}

fn short(target: &'static str, turns: u64) -> Arc<Run> {
    let out = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    let mut run = Run::new(target, 1, 300, out);
    run.turns = Some((0, turns));
    run.minimise = 10;
    Arc::new(run)
}

fn clean(tally: &Tally, turns: u64) {
    assert_eq!(tally.turns, turns);
    assert!(tally.findings.is_empty(), "{:#?}", tally.findings);
}

#[test]
fn objects_find_nothing() {
    let tally = objects::run(&short("objects", TURNS), &seeds());
    clean(&tally, TURNS);
    assert!(tally.effective > TURNS / 4, "{} turns changed something", tally.effective);
}

#[test]
fn patches_find_nothing() {
    let mut seeds = seeds();
    seeds.read_resources(&root(), "envoyfilter").expect("goldens");
    clean(&patches::run(&short("patches", TURNS), &seeds), TURNS);
}

#[test]
fn requests_find_nothing() {
    clean(&xds::run(&short("xds", 80), &seeds()).expect("a server"), 80);
}

/// Turns of the targets that are one function.
const MANY: u64 = 4000;

#[test]
fn requests_for_certificates_find_nothing() {
    let tally = csr::run(&short("csr", MANY)).expect("an authority");
    clean(&tally, MANY);
    assert!(tally.effective > MANY / 20, "{} certificates were issued", tally.effective);
}

#[test]
fn tokens_find_nothing() {
    // Some are signed with RSA, which is slow without optimization.
    let turns = MANY / 4;
    let tally = jwt::run(&short("jwt", turns), &seeds()).expect("keys");
    clean(&tally, turns);
    assert!(tally.effective > turns / 20, "{} tokens were believed", tally.effective);
}

#[test]
fn callers_find_nothing() {
    let turns = MANY / 4;
    let tally = identity::run(&short("identity", turns), &seeds()).expect("keys");
    clean(&tally, turns);
    assert!(tally.effective > turns / 20, "{} callers were let in", tally.effective);
}
