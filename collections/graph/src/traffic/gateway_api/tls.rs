//! The TLS settings of a listener, as those of a server (G02).

use sluice_engine::Context;
use sluice_model::gateway_api::{
    FrontendTls, FrontendValidation, Gateway, GroupKind, Listener, ListenerTls, ListenerTlsMode, ObjectRef,
};
use sluice_model::{
    BUILTIN_CREDENTIAL, CredentialKind, Labels, ObjectKey, ROOTS_SUFFIX, ServerTls, ServerTlsMode, Text,
    is_cipher_suite, label,
};

use super::credentials::CredentialLookup;
use super::grants::GrantLookup;
use crate::registry::network_gateways::MTLS_PORT;

/// Option: how client certificates are requested.
const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";
/// Option: cipher suites.
const CIPHER_SUITES: &str = "gateway.istio.io/tls-cipher-suites";
/// Option: the TLS mode of a listener of an east-west gateway.
const LISTENER_PROTOCOL: &str = "gateway.istio.io/listener-protocol";

/// The look-ups that TLS settings depend on.
#[derive(Clone, Copy)]
pub(super) struct TlsReads {
    /// ReferenceGrants.
    pub(super) grants: GrantLookup,
    /// Certificates and root certificates.
    pub(super) credentials: CredentialLookup,
}

/// The object with the listener.
pub(super) struct TlsOwner<'a> {
    /// Kind of the object with the listener.
    pub(super) kind: GroupKind,
    /// Its cluster.
    pub(super) cluster: &'a Text,
    /// Its namespace.
    pub(super) namespace: &'a Text,
    /// Its labels.
    pub(super) labels: &'a Labels,
    /// The Gateway it is or belongs to.
    pub(super) gateway: &'a Gateway,
}

/// TLS settings of a server, and whether it can be served: its certificates must exist and be permitted.
pub(super) fn server_tls(
    cx: &Context,
    reads: TlsReads,
    owner: &TlsOwner<'_>,
    listener: &Listener,
) -> (Option<ServerTls>, bool) {
    let Some(tls) = &listener.tls else { return (None, true) };
    let mut out = ServerTls::default();
    let mut valid = true;
    match tls.mode.unwrap_or(ListenerTlsMode::Terminate) {
        ListenerTlsMode::Passthrough => {
            let auto = is_auto_passthrough(owner.labels, tls, listener.port);
            out.mode = if auto { ServerTlsMode::AutoPassthrough } else { ServerTlsMode::Passthrough };
        }
        ListenerTlsMode::Terminate => {
            out.mode = match option(tls, TERMINATE_MODE) {
                "MUTUAL" => ServerTlsMode::Mutual,
                "OPTIONAL_MUTUAL" => ServerTlsMode::OptionalMutual,
                "ISTIO_SIMPLE" => {
                    out.mode = ServerTlsMode::Simple;
                    out.credential_name = BUILTIN_CREDENTIAL.into();
                    return (Some(out), true);
                }
                "ISTIO_MUTUAL" => {
                    out.mode = ServerTlsMode::IstioMutual;
                    return (Some(out), true);
                }
                _ => ServerTlsMode::Simple,
            };
            valid = terminate(cx, reads, owner, listener, tls, &mut out);
        }
    }
    out.cipher_suites = cipher_suites(option(tls, CIPHER_SUITES));
    (Some(out), valid)
}

fn option<'a>(tls: &'a ListenerTls, name: &str) -> &'a str {
    tls.options.get(name).map(Text::as_str).unwrap_or_default()
}

fn is_auto_passthrough(labels: &Labels, tls: &ListenerTls, port: u16) -> bool {
    let is_network_port =
        || labels.get(label::GATEWAY_PORT).map_or(port == MTLS_PORT, |declared| **declared == *port.to_string());
    option(tls, LISTENER_PROTOCOL) == "auto-passthrough" || (labels.contains_key(label::NETWORK) && is_network_port())
}

fn cipher_suites(written: &str) -> Vec<Text> {
    let suites = written.split(',').map(str::trim).filter(|suite| !suite.is_empty() && is_cipher_suite(suite));
    let mut known: Vec<Text> = Vec::new();
    for suite in suites.map(Text::from) {
        if !known.contains(&suite) {
            known.push(suite);
        }
    }
    known
}

/// Sets the names of the certificates, and returns whether one of them may be used.
fn terminate(
    cx: &Context,
    TlsReads { grants, credentials }: TlsReads,
    owner: &TlsOwner<'_>,
    listener: &Listener,
    tls: &ListenerTls,
    out: &mut ServerTls,
) -> bool {
    if tls.certificates.len() > 2 {
        return false;
    }
    let secret = GroupKind { group: Text::default(), kind: "Secret".into() };
    let allowed = |reference: &ObjectRef| {
        let namespace = reference.namespace_in(owner.namespace);
        grants.allow(cx, (&owner.kind, owner.namespace), (&reference.kind, &namespace, &reference.name))
    };
    let object = |reference: &ObjectRef| {
        ObjectKey::new(owner.cluster.clone(), reference.namespace_in(owner.namespace), reference.name.clone())
    };
    let usable = tls.certificates.iter().filter(|reference| {
        reference.kind == secret && allowed(reference) && credentials.has_certificate(cx, &object(reference))
    });
    let mut names: Vec<Text> = usable
        .map(|reference| {
            let namespace = reference.namespace_in(owner.namespace);
            format!("{}{namespace}/{}", CredentialKind::GatewaySecret.prefix(), reference.name).into()
        })
        .collect();
    match names.len() {
        0 => return tls.certificates.is_empty(),
        1 => out.credential_name = names.remove(0),
        _ => out.credential_names = names,
    }
    let validation = owner.gateway.frontend_tls.as_ref().map(|frontend| validation_of(frontend, listener.port));
    let Some(validation) = validation.filter(|validation| !validation.roots.is_empty()) else { return true };
    let [root] = validation.roots.as_slice() else { return false };
    if !allowed(root) {
        return false;
    }
    let (kind, exists) = if root.kind == secret {
        (CredentialKind::GatewaySecret, credentials.has_roots(cx, &object(root)))
    } else if root.kind.is("", "ConfigMap") {
        (CredentialKind::ConfigMap, credentials.has_bundle(cx, &object(root)))
    } else {
        return false;
    };
    if !exists {
        return false;
    }
    out.ca_cert_credential_name =
        format!("{}{}/{}{ROOTS_SUFFIX}", kind.prefix(), root.namespace_in(owner.namespace), root.name).into();
    let (mode, skip) = match (option(tls, TERMINATE_MODE), validation.allows_insecure) {
        ("MUTUAL", _) => (ServerTlsMode::Mutual, false),
        ("OPTIONAL_MUTUAL", _) => (ServerTlsMode::OptionalMutual, false),
        (_, true) => (ServerTlsMode::OptionalMutual, true),
        (_, false) => (ServerTlsMode::Mutual, false),
    };
    (out.mode, out.insecure_skip_verify) = (mode, Some(skip));
    true
}

fn validation_of(frontend: &FrontendTls, port: u16) -> &FrontendValidation {
    frontend.per_port.get(&port).unwrap_or(&frontend.default)
}
