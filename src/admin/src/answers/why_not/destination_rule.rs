//! Why a DestinationRule has no effect at a proxy.

use sluice_model::{Host, ObjectKey};

use super::facts::Facts;
use super::reach::reached;
use super::rules::check_rule;
use super::{AbsenceReason, services};

/// Adds the reasons why a DestinationRule has no effect at the proxy.
pub(super) fn check(facts: &Facts<'_>, key: &ObjectKey, findings: &mut Vec<AbsenceReason>) {
    let rule = facts.snapshot.get(&facts.state.handles.destination_rules, key);
    let Some(rule) = rule else { return };
    let hosts = facts.snapshot.iter(&facts.state.handles.services).map(|(key, _)| &key.host);
    let mut covered: Vec<Host> = hosts.filter(|host| rule.host.contains(host)).cloned().collect();
    covered.dedup();
    if covered.is_empty() {
        services::check(facts, &rule.host, None, None, findings);
    }
    for host in covered.iter().take(MAX_HOSTS) {
        let services = facts.services(host);
        match reached(facts, &services) {
            Some(service) => check_rule(facts, key, &rule, &service, findings),
            None => services::check(facts, host, None, None, findings),
        }
    }
}

/// Hosts of a wildcard that are looked at.
const MAX_HOSTS: usize = 20;
