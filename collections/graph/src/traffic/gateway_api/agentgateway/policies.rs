//! TLS with backends, and the endpoint pickers of InferencePools.

use sluice_engine::{Collection, Context, Dep};
use sluice_envoy::agentgateway::{BackendRoots, BackendTlsInputs, build_backend_tls, build_pool_policies};
use sluice_model::gateway_api::{BackendTlsPolicy, BackendValidation, GROUP, Gateway, GroupKind, InferencePool};
use sluice_model::{EndpointPicker, ObjectKey, RootCertificates};

use super::super::grants::GrantLookup;
use super::super::policies::{TargetKind, is_ignored, preceding_policy, target_of};
use super::{AgentgatewayInputs, Derived, GatewayAccounts, ResourceOrigin};
use crate::registry::services::{pool_host, service_host};

/// Policies with TLS settings of BackendTLSPolicies for Services, for all agentgateways: a gateway without the policy of a backend
/// would send in plaintext to it. One more, with its certificate and private key, for each Gateway that has a certificate for backends.
/// Key: policy and number. From: `backend_tls_policies`, `gateway_api/targets`, `root_bundles`, `agentgateway/client_certificates`,
/// `secrets`, `reference_grants`. Changes when: the policy does, one for the same target, its roots, the ports of the target, or the
/// certificates of Gateways. Size: targets of policies × (1 + Gateways with a certificate). Rejects: none.
pub(super) fn derive_backend_tls<'s>(
    inputs: &AgentgatewayInputs<'_, 's>,
    accounts: &GatewayAccounts<'s>,
) -> Collection<'s, ResourceOrigin, Derived> {
    let domain = inputs.options.domain.clone();
    let certificates = derive_client_certificates(inputs, accounts);
    let by_cluster = certificates
        .index("agentgateway/certificates-by-cluster", |key, secret| [(key.cluster.clone(), secret.clone())]);
    inputs.objects.backend_tls_policies.derive_many("agentgateway/backend_tls", |deps| {
        let (targets, by_target) = (deps.on(inputs.targets), deps.by(inputs.tls_by_target));
        let (certificates, secrets) = (deps.by(&by_cluster), deps.on(&inputs.objects.secrets));
        let bundles = deps.on(inputs.bundles);
        move |cx, key, policy: &BackendTlsPolicy| {
            let mut rows = Vec::new();
            let roots = PolicyRoots::of(cx, &bundles, key, &policy.validation);
            for target in policy.targets.iter().filter(|_| !is_ignored(&policy.meta)) {
                let of = target_of(key, target).filter(|(kind, _)| *kind == TargetKind::Service);
                let Some(object) = of.and_then(|of| cx.get(&targets, &of)) else { continue };
                let port = object.ports.get(&target.section).copied();
                let is_known = target.section.is_empty() || port.is_some();
                if !is_known || preceding_policy(cx, &by_target, (key, policy), target).is_some() {
                    continue;
                }
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
                rows.push(Derived::for_all(build_backend_tls(&tls)));
                for (gateway, secret) in cx.by(&certificates, &key.cluster) {
                    let secret = cx.get(&secrets, &secret);
                    let certificate = secret.as_ref().and_then(|secret| secret.certificate.as_ref());
                    if certificate.is_some() {
                        let made = build_backend_tls(&BackendTlsInputs { certificate, ..tls.clone() });
                        rows.push(Derived::new(&gateway, true, made));
                    }
                }
            }
            let origin = |number| ResourceOrigin::Policy { policy: key.clone(), number };
            rows.into_iter().enumerate().map(|(number, row)| (origin(number), row)).collect::<Vec<_>>()
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

/// The Secrets with the certificates that agentgateways present to backends, where a reference to them is permitted.
/// Key: the Gateway. From: `kubernetes_gateways`, `agentgateway/accounts`, `reference_grants`. Changes when: the reference of the
/// Gateway does, its class, or a grant for it. Size: Gateways of agentgateways with a certificate. Rejects: none.
fn derive_client_certificates<'s>(
    inputs: &AgentgatewayInputs<'_, 's>,
    accounts: &GatewayAccounts<'s>,
) -> Collection<'s, ObjectKey, ObjectKey> {
    inputs.objects.kubernetes_gateways.derive("agentgateway/client_certificates", |deps| {
        let accounts = deps.on(accounts);
        let grants = GrantLookup::on(deps, inputs.grants);
        move |cx, key, gateway: &Gateway| {
            let reference = gateway.backend_certificate.as_ref().filter(|reference| reference.kind.is("", "Secret"))?;
            cx.get(&accounts, key)?;
            let namespace = reference.namespace_in(&key.namespace);
            let from = GroupKind { group: GROUP.into(), kind: "Gateway".into() };
            let to = (&reference.kind, &namespace, &reference.name);
            let is_allowed = grants.allow(cx, (&from, &key.namespace), to);
            is_allowed.then(|| ObjectKey::new(key.cluster.clone(), namespace.clone(), reference.name.clone()))
        }
    })
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
