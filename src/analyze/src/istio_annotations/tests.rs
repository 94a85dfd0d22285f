//! Compares the table with the names that Istio documents (istio/api, `annotation/annotations.yaml`, release 1.31).

use super::*;

/// One name a line, in order.
const NAMES: &str = include_str!("names.txt");

#[test]
fn table_has_all_annotations_of_istio() {
    let names: Vec<&str> = ISTIO_ANNOTATIONS.iter().map(|annotation| annotation.name).collect();
    assert_eq!(names, NAMES.lines().collect::<Vec<_>>());
    assert!(names.is_sorted());
}

#[test]
fn annotations_are_in_domains_of_istio_and_have_kinds() {
    for annotation in ISTIO_ANNOTATIONS {
        assert!(is_istio(annotation.name), "{annotation:?}");
        assert!(!annotation.kinds.is_empty(), "{annotation:?}");
        assert!(!annotation.kinds.contains(&"Any") || annotation.kinds.len() == 1, "{annotation:?}");
    }
    assert!(!is_istio("example.com/istio.io"));
}

#[test]
fn deprecated_annotations_are_those_of_istio() {
    let deprecated = ISTIO_ANNOTATIONS.iter().filter(|annotation| annotation.is_deprecated);
    let names: Vec<&str> = deprecated.map(|annotation| annotation.name).collect();
    let expected = [
        "alpha.istio.io/canonical-serviceaccounts",
        "alpha.istio.io/kubernetes-serviceaccounts",
        "sidecar.istio.io/discoveryAddress",
        "sidecar.istio.io/extraStatTags",
        "sidecar.istio.io/inject",
        "sidecar.istio.io/statsCompression",
        "sidecar.istio.io/statsInclusionPrefixes",
        "sidecar.istio.io/statsInclusionRegexps",
        "sidecar.istio.io/statsInclusionSuffixes",
        "traffic.sidecar.istio.io/kubevirtInterfaces",
    ];
    assert_eq!(names, expected);
}
