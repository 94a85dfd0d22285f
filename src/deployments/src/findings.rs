//! The findings about Gateways that cannot be deployed as they request.

use std::collections::BTreeSet;

use sluice_engine::Input;
use sluice_graph::RejectKey;
use sluice_model::{Kind, ObjectKey, Reject, RejectCause, Severity};

/// The findings of this term. They are retracted when it ends, because the next leader reports its own.
pub(crate) struct Findings {
    input: Input<RejectKey, Vec<Reject>>,
    reported: BTreeSet<ObjectKey>,
}

impl Findings {
    pub(crate) fn new(input: Input<RejectKey, Vec<Reject>>) -> Self {
        Self { input, reported: BTreeSet::new() }
    }

    /// Reports what is wrong with a Gateway; an empty reason retracts the finding.
    pub(crate) fn report(&mut self, gateway: &ObjectKey, reason: &str) {
        if reason.is_empty() {
            return self.retract(gateway);
        }
        let reject = Reject {
            kind: Kind::KubernetesGateway,
            object: gateway.clone(),
            field_path: "spec".into(),
            reason: reason.into(),
            severity: Severity::Warning,
            cause: RejectCause::Other,
        };
        self.input.set(key(gateway), vec![reject]);
        self.reported.insert(gateway.clone());
    }

    /// Retracts the finding about a Gateway, if there is one.
    pub(crate) fn retract(&mut self, gateway: &ObjectKey) {
        if self.reported.remove(gateway) {
            self.input.delete(key(gateway));
        }
    }
}

impl Drop for Findings {
    fn drop(&mut self) {
        for gateway in &self.reported {
            self.input.delete(key(gateway));
        }
    }
}

fn key(gateway: &ObjectKey) -> RejectKey {
    RejectKey { kind: Kind::KubernetesGateway, object: gateway.clone() }
}

#[cfg(test)]
mod tests {
    use sluice_engine::{Engine, EngineOptions};
    use sluice_graph::{GraphOptions, build};

    use super::*;

    #[test]
    fn finding_is_retracted_when_it_is_corrected_and_when_the_term_ends() {
        let options = GraphOptions::default();
        let (engine, handles) = Engine::start(EngineOptions::default(), move |builder| build(builder, &options));
        let gateway = ObjectKey::new("Kubernetes", "edge", "door");
        let reasons = || {
            engine.flush();
            let rejects = engine.snapshot().get(&handles.rejects, &key(&gateway));
            rejects.iter().flat_map(|rejects| rejects.iter()).map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut findings = Findings::new(handles.inputs.component_rejects.clone());
        findings.report(&gateway, "the template fails");
        assert_eq!(reasons(), ["KubernetesGateway edge/door: spec: the template fails"]);
        findings.report(&gateway, "");
        assert!(reasons().is_empty());
        findings.report(&gateway, "the template fails");
        drop(findings);
        assert!(reasons().is_empty());
    }
}
