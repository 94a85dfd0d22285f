//! TLS with backends, and the endpoint pickers of InferencePools.

use std::collections::BTreeSet;

use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps};
use sluice_envoy::agentgateway::{BackendRoots, BackendTlsInputs, build_backend_tls, build_pool_policies};
use sluice_model::gateway_api::{
    BackendTlsPolicy, BackendValidation, GROUP, Gateway, GroupKind, InferencePool, ObjectRef,
};
use sluice_model::{EndpointPicker, ObjectKey, RootCertificates, Secret};

use super::super::grants::GrantLookup;
use super::super::policies::{TargetKind, is_ignored, preceding_policy, target_of};
use super::{AgentgatewayInputs, Derived, GatewayAccounts, ResourceOrigin};
use crate::registry::services::{pool_host, service_host};

/// Policies with TLS settings of BackendTLSPolicies for Services, at each Gateway with a route to the Service. If the Gateway has a
/// certificate for backends, one more with it and its private key.
/// Key: policy and number. From: `backend_tls_policies`, `gateway_api/targets`, `root_bundles`, the routes that refer to the targets,
/// `agentgateway/accounts`, `agentgateway/client_certificates`, `secrets`, `reference_grants`. Changes when: the policy does, one for
/// the same target, its roots, the ports of the target, the Gateways with a route to it, or their certificates. Size: targets of
/// policies × Gateways. Rejects: none.
pub(super) fn derive_backend_tls<'s>(
    inputs: &AgentgatewayInputs<'_, 's>,
    accounts: &GatewayAccounts<'s>,
) -> Collection<'s, ResourceOrigin, Derived> {
    let domain = inputs.options.domain.clone();
    inputs.objects.backend_tls_policies.derive_many("agentgateway/backend_tls", |deps| {
        let (targets, by_target) = (deps.on(inputs.targets), deps.by(inputs.tls_by_target));
        let (routed, accounts) = (deps.by(inputs.gateways_of_backends), deps.on(accounts));
        let bundles = deps.on(inputs.bundles);
        let certificates = BackendCertificates::on(deps, inputs);
        move |cx, key, policy: &BackendTlsPolicy| {
            let mut rows = Vec::new();
            let roots = PolicyRoots::of(cx, &bundles, key, &policy.validation);
            for target in policy.targets.iter().filter(|_| !is_ignored(&policy.meta)) {
                let of = target_of(key, target).filter(|(kind, _)| *kind == TargetKind::Service);
                let Some((of, object)) = of.and_then(|of| Some((of.clone(), cx.get(&targets, &of)?))) else { continue };
                let port = object.ports.get(&target.section).copied();
                let is_known = target.section.is_empty() || port.is_some();
                if !is_known || preceding_policy(cx, &by_target, (key, policy), target).is_some() {
                    continue;
                }
                let gateways: BTreeSet<ObjectKey> =
                    cx.by(&routed, &of).into_iter().map(|(_, gateway)| (*gateway).clone()).collect();
                let host = service_host(&target.name, &key.namespace, &domain);
                let tls = BackendTlsInputs {
                    policy: key,
                    host: &host,
                    port: port.filter(|_| !target.section.is_empty()),
                    roots: roots.as_input(),
                    certificate: None,
                    hostname: &policy.validation.hostname,
                    subject_alt_names: &policy.validation.subject_alt_names,
                };
                for gateway in gateways.iter().filter(|gateway| cx.get(&accounts, gateway).is_some()) {
                    let mut add = |with_key: bool, tls: &BackendTlsInputs<'_>| {
                        let origin = ResourceOrigin::Policy { policy: key.clone(), number: rows.len() };
                        rows.push((origin, Derived::new(gateway, with_key, build_backend_tls(tls))));
                    };
                    add(false, &tls);
                    let secret = certificates.of(cx, gateway);
                    let certificate = secret.as_ref().and_then(|secret| secret.certificate.as_ref());
                    if certificate.is_some() {
                        add(true, &BackendTlsInputs { certificate, ..tls.clone() });
                    }
                }
            }
            rows
        }
    })
}

/// The policies of InferencePools that name a port of their endpoint picker, for all agentgateways.
/// Key: pool and number. From: `inference_pools`. Changes when: the picker of the pool does. Size: two for each pool. Rejects: none.
pub(super) fn derive_pool_policies<'s>(inputs: &AgentgatewayInputs<'_, 's>) -> Collection<'s, ResourceOrigin, Derived> {
    let (domain, enabled) = (inputs.options.domain.clone(), inputs.options.gateway_api.inference);
    inputs.objects.inference_pools.flat_map("agentgateway/pools", move |key, pool: &InferencePool| {
        let port = pool.picker.port.filter(|_| enabled && pool.picker.kind == *"Service");
        let policies = port.map(|port| {
            let picker = EndpointPicker {
                host: service_host(&pool.picker.name, &key.namespace, &domain),
                port,
                fails_open: pool.picker.fails_open,
            };
            build_pool_policies(key, &pool_host(&key.name, &key.namespace, &domain), &picker)
        });
        let row = |(number, made)| (ResourceOrigin::Pool { pool: key.clone(), number }, Derived::for_all(made));
        policies.into_iter().flatten().enumerate().map(row).collect::<Vec<_>>()
    })
}

/// Reads the certificates of Gateways for backends, inside a `derive`.
struct BackendCertificates {
    references: Dep<ObjectKey, ObjectRef>,
    secrets: Dep<ObjectKey, Secret>,
    grants: GrantLookup,
}

impl BackendCertificates {
    fn on<'s>(deps: &mut Deps<'s>, inputs: &AgentgatewayInputs<'_, 's>) -> Self {
        let references = inputs
            .objects
            .kubernetes_gateways
            .filter_map("agentgateway/client_certificates", |_, gateway: &Gateway| gateway.backend_certificate.clone());
        Self {
            references: deps.on(&references),
            secrets: deps.on(&inputs.objects.secrets),
            grants: GrantLookup::on(deps, inputs.grants),
        }
    }

    /// The Secret that a Gateway refers to, if it may.
    fn of(&self, cx: &Context, gateway: &ObjectKey) -> Option<Arc<Secret>> {
        let reference = cx.get(&self.references, gateway).filter(|reference| reference.kind.is("", "Secret"))?;
        let namespace = reference.namespace_in(&gateway.namespace);
        let from = GroupKind { group: GROUP.into(), kind: "Gateway".into() };
        let to = (&reference.kind, &namespace, &reference.name);
        let is_allowed = self.grants.allow(cx, (&from, &gateway.namespace), to);
        let secret = ObjectKey::new(gateway.cluster.clone(), namespace.clone(), reference.name.clone());
        is_allowed.then(|| cx.get(&self.secrets, &secret)).flatten()
    }
}

/// The roots that a policy names.
enum PolicyRoots {
    System,
    Given(Vec<u8>),
    Unusable,
}

impl PolicyRoots {
    fn of(
        cx: &Context,
        bundles: &Dep<ObjectKey, RootCertificates>,
        key: &ObjectKey,
        validation: &BackendValidation,
    ) -> Self {
        match &validation.well_known_roots {
            Some(name) if *name == *"System" => return Self::System,
            Some(_) => return Self::Unusable,
            None => {}
        }
        let mut all: Vec<u8> = Vec::new();
        for root in &validation.roots {
            let config_map = ObjectKey { name: root.name.clone(), ..key.clone() };
            let found = if root.kind.is("", "ConfigMap") { cx.get(bundles, &config_map) } else { None };
            let Some(found) = found else { return Self::Unusable };
            if !all.is_empty() {
                all.push(b'\n');
            }
            all.extend_from_slice(&found.certificates.0);
        }
        if all.is_empty() { Self::Unusable } else { Self::Given(all) }
    }

    fn as_input(&self) -> BackendRoots<'_> {
        match self {
            Self::System => BackendRoots::System,
            Self::Given(roots) => BackendRoots::Given(roots),
            Self::Unusable => BackendRoots::Unusable,
        }
    }
}
