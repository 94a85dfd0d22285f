//! The resources of a proxy that an object made.

use sluice_graph::Inputs;
use sluice_model::{DestinationRule, Host, Kind, ObjectKey, VirtualService};

use super::super::path::FieldPath;
use super::super::resource::locate;
use super::facts::Facts;
use super::found_resource::FoundResource;
use super::subject::Subject;

/// Hosts and resources that are looked at.
const MAX_HOSTS: usize = 10;
const MAX_RESOURCES: usize = 20;

/// The clusters and virtual hosts of the object's hosts that read the object.
pub(super) fn resources(facts: &Facts<'_>, kind: Kind, key: &ObjectKey) -> Vec<FoundResource> {
    let subjects: Vec<Subject> = match kind {
        Kind::VirtualService => {
            let vs = facts.snapshot.get(&facts.state.handles.virtual_services, key);
            let hosts = vs.map(|vs: std::sync::Arc<VirtualService>| vs.hosts.clone()).unwrap_or_default();
            hosts.into_iter().map(|host| Subject::Route { host, port: None }).collect()
        }
        Kind::DestinationRule => {
            let rule = facts.snapshot.get(&facts.state.handles.destination_rules, key);
            clusters(rule.iter().flat_map(|rule| covered(facts, rule)))
        }
        Kind::Service => clusters([facts.host_of_service(key)]),
        Kind::ServiceEntry => clusters(facts.hosts_of_entry(key)),
        _ => Vec::new(),
    };
    let found = subjects.iter().take(MAX_HOSTS).flat_map(|subject| subject.resources(facts));
    found.take(MAX_RESOURCES).filter(|resource| reads(facts, resource, kind, key)).collect()
}

fn clusters(hosts: impl IntoIterator<Item = Host>) -> Vec<Subject> {
    hosts.into_iter().map(|host| Subject::Host { host, port: None, subset: None }).collect()
}

/// The hosts of services that a rule covers.
fn covered(facts: &Facts<'_>, rule: &DestinationRule) -> Vec<Host> {
    let services = facts.snapshot.iter(&facts.state.handles.services);
    services.map(|(key, _)| &key.host).filter(|host| rule.host.contains(host)).take(MAX_HOSTS).cloned().collect()
}

/// Whether a resource, or the part of it, was made of the object.
fn reads(facts: &Facts<'_>, resource: &FoundResource, kind: Kind, key: &ObjectKey) -> bool {
    let handles = &facts.state.handles;
    let Some(located) = locate(&facts.snapshot, handles, facts.key, resource.kind, &resource.name) else {
        return false;
    };
    let segment = FieldPath::parse(&resource.part).ok().and_then(|path| located.segment_of_path(&path).cloned());
    let located = segment.map_or_else(|| located.clone(), |segment| located.only(&[segment].into()));
    let explanations = located.explain(&facts.state.engine, handles);
    let mut records = explanations.iter().flat_map(|why| &why.inputs);
    records
        .any(|record| Some(record.collection()) == Inputs::collection(kind) && record.key::<ObjectKey>() == Some(key))
}
