//! Root certificates that workloads trust: one message for all proxies.

use prost::Message;
use sluice_model::{Resource, ResourceType, Text};
use sluice_proto::istio::mesh::v1alpha1::ProxyConfig;

use super::{TestGraph, sidecar};

impl TestGraph {
    /// The number of changed resources of any type, and the roots that proxies get.
    fn changed_roots(&mut self) -> (usize, Option<Vec<String>>) {
        let batch = self.feed.try_next();
        let resources = &self.handles.resources;
        let events = batch.iter().flat_map(|batch| resources.iter().flat_map(|of| batch.events(of)));
        let changed = events.filter(|event| event.old != event.new).count();
        let snapshot = self.engine.snapshot();
        let mut all = resources.iter().flat_map(|of| snapshot.iter(of));
        let found = all.find(|(key, _)| key.resource_type == ResourceType::ProxyConfig);
        let roots = found.map(|(_, resource)| match resource {
            Resource::Encoded(bytes) => ProxyConfig::decode(bytes.as_ref()).expect("a message").ca_certificates_pem,
            other => panic!("{other:?}"),
        });
        (changed, roots)
    }

    fn trust(&mut self, roots: &[&str]) {
        let roots: Vec<Text> = roots.iter().map(|root| Text::from(*root)).collect();
        self.engine.transaction(|tx| tx.set(&self.handles.inputs.trust_bundle, (), roots));
    }
}

#[test]
fn roots_touch_one_message() {
    let mut mesh = TestGraph::new("");
    mesh.connect(sidecar("town", "client", "10.9.0.1", &[]));
    mesh.connect(sidecar("port", "client", "10.9.0.2", &[]));
    assert_eq!(mesh.changed_roots().1, None, "workloads have the roots of their own certificates");
    mesh.trust(&["one"]);
    assert_eq!(mesh.changed_roots(), (1, Some(vec!["one".to_owned()])));
    mesh.trust(&["one", "two"]);
    assert_eq!(mesh.changed_roots(), (1, Some(vec!["one".to_owned(), "two".to_owned()])));
    mesh.trust(&["one", "two"]);
    assert_eq!(mesh.changed_roots().0, 0);
    mesh.trust(&[]);
    assert_eq!(mesh.changed_roots(), (1, None));
}
