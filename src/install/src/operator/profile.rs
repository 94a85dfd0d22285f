//! Profiles: which components they have, and the profile of the chart that they stand for.

use super::Component;
use crate::error::InstallError;

/// A profile.
#[derive(Clone, Copy)]
pub(super) struct Profile {
    pub(super) name: &'static str,
    /// The profile of the chart of the control plane.
    pub(super) chart_profile: &'static str,
    components: &'static [Component],
}

const CORE: &[Component] = &[Component::Base, Component::Pilot];
const WITH_INGRESS: &[Component] = &[Component::Base, Component::Pilot, Component::IngressGateway];
const WITH_GATEWAYS: &[Component] =
    &[Component::Base, Component::Pilot, Component::IngressGateway, Component::EgressGateway];
const AMBIENT: &[Component] = &[Component::Base, Component::Pilot, Component::Cni, Component::Ztunnel];

const PROFILES: [Profile; 9] = [
    Profile { name: "ambient", chart_profile: "ambient", components: AMBIENT },
    Profile { name: "default", chart_profile: "default", components: WITH_INGRESS },
    Profile { name: "demo", chart_profile: "demo", components: WITH_GATEWAYS },
    Profile { name: "empty", chart_profile: "default", components: &[] },
    Profile { name: "minimal", chart_profile: "default", components: CORE },
    Profile { name: "openshift", chart_profile: "openshift", components: WITH_INGRESS },
    Profile { name: "preview", chart_profile: "preview", components: WITH_INGRESS },
    Profile { name: "remote", chart_profile: "remote", components: CORE },
    Profile { name: "stable", chart_profile: "stable", components: WITH_INGRESS },
];

impl Profile {
    pub(super) fn named(name: &str) -> Result<Self, InstallError> {
        PROFILES.into_iter().find(|profile| profile.name == name).ok_or_else(|| {
            let names = PROFILES.map(|profile| profile.name).join(", ");
            InstallError::input("spec.profile", format!("{name:?} is not known; the profiles are {names}"))
        })
    }

    pub(super) fn has(&self, component: Component) -> bool {
        self.components.contains(&component)
    }

    /// What the profile of this name has in Istio and not here.
    pub(super) fn notes(&self) -> Vec<String> {
        let note = match self.name {
            "openshift" => {
                "profile openshift: the CNI agent is not installed, because its chart has no NetworkAttachmentDefinition \
                 for Multus; install Istio's chart cni"
            }
            _ => return Vec::new(),
        };
        vec![note.to_owned()]
    }
}
