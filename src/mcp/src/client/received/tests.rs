use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;
use sluice_model::{JwtKeys, Object, PeerMtls, PolicyAction};
use sluice_parse::kind_info;

use super::*;
use crate::kinds::TYPE_URL_PREFIX;
use crate::resource::resource_of;

const SOURCE: &str = "xds://server:15010";

fn cluster(revision: &str) -> Cluster {
    Cluster {
        id: "c".into(),
        domain: "cluster.local".into(),
        is_remote: false,
        reads_remote_gateways: false,
        ignored: BTreeSet::new(),
        revision: revision.into(),
        multi_cluster_api: sluice_model::MultiClusterApi::default(),
    }
}

fn sidecars() -> &'static KindInfo {
    kind_info(Kind::Sidecar).expect("a kind")
}

fn encoded(resource: &Resource) -> Any {
    Any { type_url: format!("{TYPE_URL_PREFIX}{RESOURCE_MESSAGE}"), value: resource.encode_to_vec() }
}

/// A Sidecar that sees a namespace.
fn resource(name: &str, namespace: &str, revision: Option<&str>) -> Resource {
    let labels = revision.map(|revision| json!({"istio.io/rev": revision})).unwrap_or_default();
    let object = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Sidecar",
        "metadata": {"namespace": "shop", "name": name, "resourceVersion": "7", "labels": labels},
        "spec": {"egress": [{"hosts": [format!("{namespace}/*")]}]},
    });
    resource_of(sidecars(), &ObjectKey::new("c", "shop", name), &object).expect("a valid object")
}

/// Applies a response, and returns the names of changed and of deleted objects.
fn apply(received: &mut ReceivedObjects, resources: &[Any]) -> (Vec<String>, Vec<String>) {
    let response = received.compare(sidecars(), resources);
    let (set, deleted): (Vec<&Change>, Vec<&Change>) =
        response.changes.iter().partition(|change| change.object.is_some());
    let names = |changes: Vec<&Change>| changes.iter().map(|change| change.key.name.to_string()).collect();
    let result = (names(set), names(deleted));
    received.accept(response);
    result
}

#[test]
fn response_changes_only_what_differs() {
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
    assert_eq!(received.not_answered().len(), configuration_kinds().count());
    let (a, b) = (encoded(&resource("a", "bank", None)), encoded(&resource("b", "bank", None)));
    let response = received.compare(sidecars(), &[a.clone(), b.clone()]);
    let first = &response.changes[0];
    assert_eq!((first.origin.place.as_str(), first.origin.version.as_str()), (SOURCE, "7"));
    assert!(first.object.as_ref().is_some_and(|parsed| parsed.object.is_some() && parsed.rejects.is_empty()));
    assert!(first.origin.original.is_some(), "the object is served to others");
    assert!(received.accept(response), "the first response");
    assert!(!received.not_answered().iter().any(|url| url == "networking.istio.io/v1/Sidecar"));

    assert_eq!(apply(&mut received, &[b.clone(), a.clone()]), (vec![], vec![]));
    let changed = encoded(&resource("a", "other", None));
    assert_eq!(apply(&mut received, &[changed, b]), (vec!["a".to_owned()], vec![]));
    // If a name occurs twice, the last resource counts.
    let twice = [encoded(&resource("a", "bank", None)), encoded(&resource("a", "other", None))];
    assert_eq!(apply(&mut received, &twice), (vec![], vec!["b".to_owned()]));
    assert_eq!(apply(&mut received, &[]), (vec![], vec!["a".to_owned()]));
    assert_eq!(received.len(), 0);
}

#[test]
fn object_for_another_revision_is_not_read() {
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster("blue"));
    let of = |revision| encoded(&resource("a", "bank", revision));
    assert_eq!(apply(&mut received, &[of(Some("green"))]), (vec![], vec![]));
    assert_eq!(apply(&mut received, &[of(Some("blue"))]), (vec!["a".to_owned()], vec![]));
    assert_eq!(apply(&mut received, &[of(Some("green"))]), (vec![], vec!["a".to_owned()]));
    assert_eq!(apply(&mut received, &[of(None)]), (vec!["a".to_owned()], vec![]));
}

#[test]
fn invalid_resource_is_a_reject_of_its_object_and_its_neighbours_apply() {
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
    let mut invalid = resource("a", "bank", None);
    invalid.body.as_mut().expect("a body").value = vec![0xff];
    let response = received.compare(sidecars(), &[encoded(&invalid), encoded(&resource("b", "bank", None))]);
    let reject = |change: &Change| change.object.as_ref().and_then(|parsed| parsed.rejects.first().cloned());
    let found = reject(&response.changes[0]).expect("a reject");
    assert_eq!((found.field_path.as_str(), found.severity), ("body", Severity::Error));
    assert!(found.reason.ends_with("(resource of xds://server:15010)"), "{}", found.reason);
    assert_eq!(reject(&response.changes[1]), None);
    received.accept(response);
    let corrected = received.compare(sidecars(), &[encoded(&resource("a", "bank", None))]);
    assert_eq!(reject(&corrected.changes[0]), None);

    let mut large = resource("c", "bank", None);
    let annotations = &mut large.metadata.as_mut().expect("metadata").annotations;
    annotations.insert("a".to_owned(), "a".repeat(MAX_RESOURCE_BYTES));
    let response = received.compare(sidecars(), &[encoded(&large)]);
    assert!(reject(&response.changes[0]).expect("a reject").reason.contains("at most 4194304 are read"));
}

fn info(kind: Kind) -> &'static KindInfo {
    kind_info(kind).expect("a kind")
}

/// The resource of a security policy in the namespace `shop`.
fn policy(kind: Kind, name: &str, spec: &Value) -> Resource {
    let object = json!({
        "apiVersion": info(kind).api_version(), "kind": info(kind).name,
        "metadata": {"namespace": "shop", "name": name}, "spec": spec,
    });
    resource_of(info(kind), &ObjectKey::new("c", "shop", name), &object).expect("a valid object")
}

fn without_body(mut resource: Resource) -> Resource {
    resource.body.as_mut().expect("a body").value = vec![0xff];
    resource
}

/// Applies a response, and returns the objects that it changes; `None` for those that it deletes.
fn changed(received: &mut ReceivedObjects, kind: Kind, resources: &[Any]) -> Vec<Option<ParsedObject>> {
    let response = received.compare(info(kind), resources);
    let objects = response.changes.iter().map(|change| change.object.as_deref().cloned()).collect();
    received.accept(response);
    objects
}

#[test]
fn security_policy_whose_resource_cannot_be_read_stays_in_its_last_valid_version() {
    let kind = Kind::AuthorizationPolicy;
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
    let valid = policy(kind, "a", &json!({"action": "DENY", "rules": [{}]}));
    let first = changed(&mut received, kind, &[encoded(&valid)]);
    let [Some(first)] = first.as_slice() else { panic!("{first:?}") };
    let mut large = valid.clone();
    let annotations = &mut large.metadata.as_mut().expect("metadata").annotations;
    annotations.insert("a".to_owned(), "a".repeat(MAX_RESOURCE_BYTES));
    for invalid in [without_body(valid.clone()), large] {
        let response = received.compare(info(kind), &[encoded(&invalid)]);
        let [change] = response.changes.as_slice() else { panic!("{:?}", response.changes) };
        assert!(change.origin.original.is_some(), "it is served to others");
        let parsed = change.object.as_ref().expect("an object");
        assert_eq!(parsed.object, first.object);
        let [reject] = parsed.rejects.as_slice() else { panic!("{:?}", parsed.rejects) };
        assert_eq!((reject.field_path.as_str(), reject.severity), ("body", Severity::Error));
        assert!(reject.reason.contains("; the last valid version stays in effect (resource of "), "{}", reject.reason);
        received.accept(response);
        assert!(changed(&mut received, kind, &[encoded(&invalid)]).is_empty(), "it is the same");
    }
    assert_eq!(changed(&mut received, kind, &[encoded(&valid)]), [Some(first.clone())]);
    assert_eq!(changed(&mut received, kind, &[]), [None]);
    let again = changed(&mut received, kind, &[encoded(&without_body(valid))]);
    assert_ne!(again[0].as_ref().expect("an object").object, first.object, "a deleted policy has no valid version");
}

#[test]
fn security_policy_that_was_never_read_denies_all_that_it_may_deny() {
    let only = |kind, revision: Option<&str>| {
        let mut received = ReceivedObjects::new(SOURCE.into(), cluster("blue"));
        let mut resource = without_body(policy(kind, "a", &json!({})));
        let labels = &mut resource.metadata.as_mut().expect("metadata").labels;
        labels.extend(revision.map(|revision| ("istio.io/rev".to_owned(), revision.to_owned())));
        let parsed = changed(&mut received, kind, &[encoded(&resource)]).pop()??;
        let [reject] = parsed.rejects.as_slice() else { panic!("{:?}", parsed.rejects) };
        assert!(reject.reason.contains("; the policy denies all that it may deny"), "{}", reject.reason);
        parsed.object
    };
    let Some(Object::AuthorizationPolicy(denies)) = only(Kind::AuthorizationPolicy, None) else { panic!("no policy") };
    assert_eq!((&*denies.namespace, denies.action, denies.rules.len()), ("shop", PolicyAction::Unreadable, 1));
    let strict = only(Kind::PeerAuthentication, Some("blue"));
    let Some(Object::PeerAuthentication(strict)) = strict else { panic!("{strict:?}") };
    assert_eq!((strict.mtls, strict.selector_unreadable), (PeerMtls::Strict, true));
    let Some(Object::RequestAuthentication(tokens)) = only(Kind::RequestAuthentication, None) else {
        panic!("no policy")
    };
    assert!(tokens.rules.iter().all(|rule| rule.keys == JwtKeys::Unusable) && tokens.rules.len() == 1);
    assert_eq!(only(Kind::AuthorizationPolicy, Some("green")), None, "it is for another revision");
    assert_eq!(only_sidecar(), None, "other kinds do not apply");
}

/// The value of a Sidecar whose resource cannot be read.
fn only_sidecar() -> Option<Object> {
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
    let invalid = without_body(resource("a", "bank", None));
    changed(&mut received, Kind::Sidecar, &[encoded(&invalid)]).pop()??.object
}

#[test]
fn security_policy_stays_while_a_resource_without_a_name_may_be_it() {
    let kind = Kind::PeerAuthentication;
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
    let strict = encoded(&policy(kind, "a", &json!({"mtls": {"mode": "STRICT"}})));
    assert_eq!(changed(&mut received, kind, std::slice::from_ref(&strict)).len(), 1);
    let broken = Any { value: vec![0xff], ..strict.clone() };
    assert!(changed(&mut received, kind, &[broken]).is_empty());
    assert_eq!((received.len(), received.invalid().len()), (1, 1));
    assert!(changed(&mut received, kind, &[strict]).is_empty());
    assert_eq!(changed(&mut received, kind, &[]), [None]);
}

#[test]
fn allow_rule_with_an_unknown_field_allows_nothing() {
    let kind = Kind::AuthorizationPolicy;
    let spec = json!({"rules": [{"from": [{"source": {"namespaces": ["a"]}}]}, {"to": [{"operation": {"methods": ["GET"]}}]}]});
    let mut resource = policy(kind, "a", &spec);
    let rules = |resource: &Resource| {
        let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
        let parsed = changed(&mut received, kind, &[encoded(resource)]).pop().flatten().expect("an object");
        let Some(Object::AuthorizationPolicy(policy)) = parsed.object else { panic!("no policy") };
        (policy.rules.len(), parsed.rejects.iter().map(|reject| reject.field_path.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(rules(&resource), (2, vec![]));
    // A third rule, {from: [{}, field 9]}.
    let rule = [0x12, 0x05, 0x0a, 0x00, 0x4a, 0x01, b'a'];
    resource.body.as_mut().expect("a body").value.extend(rule);
    let (count, findings) = rules(&resource);
    assert_eq!(count, 2, "the rule without the field would allow everything");
    assert!(findings.contains(&"spec.rules[2].field_9".to_owned()), "{findings:?}");
}

#[test]
fn resources_without_a_name_are_listed() {
    let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
    let other = Any { type_url: "type.googleapis.com/google.protobuf.Empty".to_owned(), value: Vec::new() };
    let broken = Any { value: vec![0xff], ..encoded(&resource("a", "bank", None)) };
    let mut unnamed = resource("a", "bank", None);
    unnamed.metadata.as_mut().expect("metadata").name = "a".to_owned();
    let mut all = vec![other, broken];
    all.extend(std::iter::repeat_n(encoded(&unnamed), 10));
    assert_eq!(apply(&mut received, &all), (vec![], vec![]));
    let invalid = received.invalid();
    assert_eq!(invalid.len(), MAX_LISTED_RESOURCES + 1);
    assert_eq!(invalid[0], "resource 0 of networking.istio.io/v1/Sidecar: is not an istio.mcp.v1alpha1.Resource");
    assert!(invalid[2].ends_with("metadata.name: \"a\" is not of the form NAMESPACE/NAME"), "{}", invalid[2]);
    assert_eq!(invalid[10], "and 2 more resources of Sidecar");
    apply(&mut received, &[]);
    assert!(received.invalid().is_empty());
}

proptest! {
    /// However responses arrive, the objects are those of the last one.
    #[test]
    fn objects_are_those_of_the_last_response(
        responses in prop::collection::vec(prop::collection::btree_map("[a-d]", 0..3_u8, 0..4), 1..12),
    ) {
        let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
        let mut objects: BTreeMap<ObjectKey, Box<ParsedObject>> = BTreeMap::new();
        for response in &responses {
            let resources: Vec<Any> =
                response.iter().map(|(name, number)| encoded(&resource(name, &format!("n{number}"), None))).collect();
            let changes = received.compare(sidecars(), &resources);
            for change in &changes.changes {
                match &change.object {
                    Some(object) => objects.insert(change.key.clone(), object.clone()),
                    None => objects.remove(&change.key),
                };
            }
            received.accept(changes);
        }
        let mut fresh = BTreeMap::new();
        for (name, number) in responses.last().expect("one at least") {
            let empty = ReceivedObjects::new(SOURCE.into(), cluster(""));
            let changes = empty.compare(sidecars(), &[encoded(&resource(name, &format!("n{number}"), None))]).changes;
            fresh.extend(changes.into_iter().filter_map(|change| Some((change.key, change.object?))));
        }
        prop_assert_eq!(objects, fresh);
    }

    /// Arbitrary bytes are findings and not panics.
    #[test]
    fn arbitrary_resources_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200), body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut received = ReceivedObjects::new(SOURCE.into(), cluster(""));
        let mut damaged = resource("a", "bank", None);
        damaged.body.as_mut().expect("a body").value = body;
        let broken = Any { value: bytes, ..encoded(&damaged) };
        apply(&mut received, &[broken, encoded(&damaged)]);
    }
}
