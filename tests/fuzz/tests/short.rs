//! A short run of each target with a fixed seed, and the corpora of the targets that read bytes. A finding is a regression.

use std::sync::Arc;

use sluice_fuzz::run::{FuzzStatistics, Run};
use sluice_fuzz::seeds::Seeds;
use sluice_fuzz::{analysis, coverage, csr, epochs, identity, jwt, memory, objects, patches, xds, yaml};
use sluice_testkit::parity::case::root;

/// Number of turns. A number instead of a duration makes each run the same.
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

fn clean(statistics: &FuzzStatistics, turns: u64) {
    assert_eq!(statistics.turns, turns);
    assert!(statistics.findings.is_empty(), "{:#?}", statistics.findings);
}

#[test]
fn mutated_objects_violate_no_rule() {
    let statistics = objects::run(&short("objects", TURNS), &seeds());
    clean(&statistics, TURNS);
    assert!(statistics.effective > TURNS / 4, "{} turns changed something", statistics.effective);
}

#[test]
fn analysis_of_mutated_objects_does_not_depend_on_their_order() {
    let statistics = analysis::run(&short("analysis", TURNS), &seeds(), &root()).expect("cases");
    clean(&statistics, TURNS);
    assert!(statistics.effective > TURNS / 2, "{} turns gave messages", statistics.effective);
}

#[test]
fn random_epochs_give_the_state_of_a_fresh_graph() {
    let epochs = 480;
    let statistics = epochs::run(&short("epochs", epochs), &seeds()).expect("cases");
    clean(&statistics, epochs);
    assert!(statistics.effective > epochs / 4, "{} epochs changed something", statistics.effective);
}

/// Runs all seeds of a target that reads bytes.
fn corpus_violates_no_rule(name: &str) {
    let target = coverage::CoverageTarget::new(name, &root()).expect("a target");
    let (mut inputs, mut valid) = (0, 0);
    for seed in target.seeds() {
        let checked = target.run(&seed);
        valid += u32::from(checked.unwrap_or_else(|found| panic!("{name}: {found:?}\n{seed:?}")));
        inputs += 1;
    }
    assert!(inputs > 20 && valid > inputs / 10, "{name}: {valid} of {inputs} inputs are valid");
}

#[test]
fn corpora_of_objects_violate_no_rule() {
    ["json", "yaml", "objects"].iter().for_each(|name| corpus_violates_no_rule(name));
}

#[test]
fn corpora_of_clients_violate_no_rule() {
    ["xds", "csr", "jwt", "xfcc"].iter().for_each(|name| corpus_violates_no_rule(name));
}

#[test]
fn mutated_patches_violate_no_rule() {
    let mut seeds = seeds();
    seeds.read_resources(&root(), "envoyfilter").expect("goldens");
    clean(&patches::run(&short("patches", TURNS), &seeds), TURNS);
}

#[test]
fn mutated_xds_requests_violate_no_rule() {
    clean(&xds::run(&short("xds", 80), &seeds()).expect("a server"), 80);
}

/// Number of turns of the targets that are one function.
const MANY_TURNS: u64 = 4000;

#[test]
fn mutated_signing_requests_violate_no_rule() {
    let statistics = csr::run(&short("csr", MANY_TURNS)).expect("an authority");
    clean(&statistics, MANY_TURNS);
    assert!(statistics.effective > MANY_TURNS / 20, "{} certificates were issued", statistics.effective);
}

#[test]
fn mutated_tokens_violate_no_rule() {
    // Some are signed with RSA, which is slow without optimization.
    let turns = MANY_TURNS / 4;
    let statistics = jwt::run(&short("jwt", turns), &seeds()).expect("keys");
    clean(&statistics, turns);
    assert!(statistics.effective > turns / 20, "{} tokens were accepted", statistics.effective);
}

#[test]
fn mutated_identities_violate_no_rule() {
    let turns = MANY_TURNS / 4;
    let statistics = identity::run(&short("identity", turns), &seeds()).expect("keys");
    clean(&statistics, turns);
    assert!(statistics.effective > turns / 20, "{} callers were authenticated", statistics.effective);
}

#[test]
fn grown_inputs_take_memory_in_proportion_to_their_size() {
    let statistics = memory::run(&short("memory", MANY_TURNS), &seeds());
    clean(&statistics, MANY_TURNS);
    assert!(statistics.effective > MANY_TURNS / 4, "{} inputs were read", statistics.effective);
}

#[test]
fn yaml_readers_give_the_same_documents() {
    let statistics = yaml::run(&short("yaml", MANY_TURNS), &root()).expect("the cases");
    clean(&statistics, MANY_TURNS);
    assert!(statistics.effective > MANY_TURNS / 8, "the fast path read {} texts", statistics.effective);
}
