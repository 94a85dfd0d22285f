//! Every recorded resource is decoded with our descriptors and encoded again without a change.

use std::collections::BTreeSet;
use std::sync::Mutex;

use sluice_proto::json::{decode_any, encode_any};
use sluice_proto::wire;

use super::{case, compare::compare};
use crate::canonical::canonical_dump;

#[test]
fn every_golden_is_unchanged_after_decoding_and_encoding() {
    let cases = case::cases(&case::root(), |_, _| true).expect("read the cases");
    assert!(cases.len() > 200, "the cases are there");
    let findings = Mutex::new(BTreeSet::new());
    let halves = cases.chunks(cases.len().div_ceil(2));
    std::thread::scope(|scope| {
        for half in halves {
            scope.spawn(|| half.iter().for_each(|case| check(case, &findings)));
        }
    });
    let findings = findings.into_inner().expect("no thread panicked");
    assert!(findings.is_empty(), "{} findings: {:#?}", findings.len(), findings.iter().take(20).collect::<Vec<_>>());
}

fn check(case: &case::Case, findings: &Mutex<BTreeSet<String>>) {
    for proxy in &case.proxies {
        for (kind, golden) in case.golden(&proxy.name).expect("read a golden") {
            let mut encoded = Vec::new();
            for resource in golden.iter().flatten() {
                let decoded = decode_any(resource).unwrap_or_else(|e| panic!("{} {}: {e}", case.id(), kind.name()));
                for path in &decoded.unknown {
                    add(findings, format!("{} {} has the unknown field {path}", case.id(), kind.name()));
                }
                let (url, bytes) = decoded.message;
                let name = url.rsplit('/').next().unwrap_or_default();
                encoded.push(encode_any(&url, &wire::sort_maps(name, bytes)));
            }
            let encoded = canonical_dump(encoded);
            let golden = golden.unwrap_or_default();
            let in_order = golden.iter().zip(&encoded).all(|(a, b)| super::compare::equal(a, b));
            let result = compare(Some(&golden), Some(&encoded), 2);
            for (name, paths) in &result.differing {
                add(findings, format!("{} {} {} {name}: {paths:?}", case.id(), proxy.name, kind.name()));
            }
            if result.differing.is_empty() && !in_order {
                add(findings, format!("{} {} {}: the order differs", case.id(), proxy.name, kind.name()));
            }
        }
    }
}

fn add(findings: &Mutex<BTreeSet<String>>, finding: String) {
    findings.lock().expect("no thread panicked").insert(finding);
}
