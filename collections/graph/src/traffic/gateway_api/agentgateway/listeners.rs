//! The ports of Gateways, and their listeners.

use sluice_engine::{Collection, Context, Dep};
use sluice_envoy::agentgateway::{AgentgatewayListenerInputs, ListenerTlsInputs, build_bind, build_listener};
use sluice_model::{
    CredentialKind, CredentialName, ObjectKey, ROOTS_SUFFIX, RootCertificates, Secret, ServerTls, ServerTlsMode, Text,
};

use super::super::listeners::{BoundListener, ListenerKey};
use super::{Derived, ResourceOrigin};

/// The ports that Gateways open. The first listener of a port decides its protocol.
/// Key: Gateway and port. From: `agentgateway/bound_listeners`. Changes when: the first listener of the port does, or the last one is
/// removed. Size: ports of Gateways. Rejects: none.
pub(super) fn derive_binds<'s>(
    listeners: &Collection<'s, ListenerKey, BoundListener>,
) -> Collection<'s, ResourceOrigin, Derived> {
    let by_port = listeners.index("agentgateway/listeners-by-port", |key, bound| {
        // A ListenerSet opens ports for its valid listeners only.
        let of = bound.agentgateway.as_ref().filter(|_| bound.valid || !key.parent.is_set);
        of.map(|of| ((of.gateway.clone(), bound.port), (of.place, bound.protocol.clone(), of.is_waypoint)))
    });
    let protocols = by_port.group("agentgateway/ports", |_, rows: &[(&ListenerKey, &(usize, Text, bool))]| {
        rows.iter()
            .map(|(_, listener)| *listener)
            .min()
            .map(|(_, protocol, is_waypoint)| (protocol.clone(), *is_waypoint))
    });
    protocols.flat_map("agentgateway/binds", |(gateway, port), (protocol, is_waypoint)| {
        let bind = build_bind(gateway, *port, protocol, *is_waypoint);
        [(ResourceOrigin::Bind { gateway: gateway.clone(), port: *port }, Derived::new(gateway, false, bind))]
    })
}

/// The listeners of Gateways. One that terminates TLS exists twice: with its private key, and without it for proxies that may not
/// have the key.
/// Key: `ListenerKey`. From: `agentgateway/bound_listeners`, `secrets`, `root_bundles`. Changes when: the listener or its certificate
/// does. Size: listeners. Rejects: none.
pub(super) fn derive_listeners<'s>(
    listeners: &Collection<'s, ListenerKey, BoundListener>,
    secrets: &Collection<'s, ObjectKey, Secret>,
    bundles: &Collection<'s, ObjectKey, RootCertificates>,
) -> Collection<'s, ResourceOrigin, Derived> {
    listeners.derive_many("agentgateway/listeners", |deps| {
        let lookup = CertificateLookup { secrets: deps.on(secrets), bundles: deps.on(bundles) };
        move |cx, key, bound| {
            let Some(of) = bound.agentgateway.as_ref().filter(|_| bound.valid) else { return Vec::new() };
            let tls = bound.gateway.servers.first().and_then(|server| server.tls.as_ref());
            let terminates = tls.filter(|tls| tls.mode != ServerTlsMode::Passthrough);
            let inputs = AgentgatewayListenerInputs {
                gateway: &of.gateway,
                set: key.parent.is_set.then_some(&key.parent.object),
                section: &key.section,
                hostname: &bound.hostname,
                port: bound.port,
                protocol: &bound.protocol,
                tls: terminates.map(|_| ListenerTlsInputs { certificate: None, roots: None, allows_insecure: false }),
            };
            let row = |with_key: bool, inputs: &AgentgatewayListenerInputs<'_>| {
                let origin = ResourceOrigin::Listener { listener: key.clone(), with_key };
                Some((origin, Derived::new(&of.gateway, with_key, build_listener(inputs)?)))
            };
            let found = terminates.and_then(|tls| lookup.find(cx, &of.gateway.cluster, tls));
            let with_key = found.as_ref().and_then(|(secret, roots)| {
                let tls = ListenerTlsInputs {
                    certificate: secret.certificate.as_ref(),
                    roots: roots.as_ref(),
                    allows_insecure: terminates.is_some_and(|tls| tls.insecure_skip_verify == Some(true)),
                };
                row(true, &AgentgatewayListenerInputs { tls: Some(tls), ..inputs.clone() })
            });
            row(false, &inputs).into_iter().chain(with_key).collect()
        }
    })
}

/// Reads certificates, inside a `derive`.
#[derive(Clone, Copy)]
struct CertificateLookup {
    secrets: Dep<ObjectKey, Secret>,
    bundles: Dep<ObjectKey, RootCertificates>,
}

impl CertificateLookup {
    /// The Secret with the certificate of a server, and the roots for client certificates if they are verified. `None` if one of
    /// them is missing.
    fn find(
        self,
        cx: &Context,
        cluster: &Text,
        tls: &ServerTls,
    ) -> Option<(std::sync::Arc<Secret>, Option<RootCertificates>)> {
        let object = |resource: &str| {
            let CredentialName { kind, namespace, name } = CredentialName::parse(resource)?;
            let name =
                name.strip_suffix(ROOTS_SUFFIX).filter(|_| resource != tls.credential_name.as_str()).unwrap_or(&name);
            Some((kind, ObjectKey::new(cluster.clone(), namespace?, name)))
        };
        let (_, secret) = object(&tls.credential_name)?;
        let secret = cx.get(&self.secrets, &secret)?;
        if tls.ca_cert_credential_name.is_empty() {
            return Some((secret, None));
        }
        let roots = match object(&tls.ca_cert_credential_name)? {
            (CredentialKind::ConfigMap, bundle) => (*cx.get(&self.bundles, &bundle)?).clone(),
            (_, of) => cx.get(&self.secrets, &of)?.roots.clone()?,
        };
        Some((secret, Some(roots)))
    }
}
