//! The TLS settings of a listener, as those of a server (G02).

use std::collections::BTreeMap;

use sluice_engine::Context;
use sluice_model::gateway_api::{
    FrontendTls, FrontendValidation, Gateway, GroupKind, Listener, ListenerTls, ListenerTlsMode, ObjectRef,
};
use sluice_model::{
    BUILTIN_CREDENTIAL, CredentialKind, Labels, ObjectKey, ROOTS_SUFFIX, ServerTls, ServerTlsMode, Text,
    is_cipher_suite,
};

use super::credentials::CredentialLookup;
use super::grants::GrantLookup;
use crate::registry::network_gateways::is_auto_passthrough;
use crate::statuses::StatusProblem;

/// Reason: a certificate cannot be used.
const INVALID_CERTIFICATE: &str = "InvalidCertificateRef";
/// Reason: root certificates cannot be used.
const INVALID_ROOTS: &str = "InvalidCACertificateRef";
/// Reason: root certificates cannot be in an object of that kind.
const INVALID_ROOTS_KIND: &str = "InvalidCACertificateKind";
/// Reason: no ReferenceGrant allows the reference.
const NOT_PERMITTED: &str = "RefNotPermitted";

/// Whether a problem is one for which the listener is not accepted.
pub(super) fn is_not_accepted(problem: &StatusProblem) -> bool {
    [INVALID_ROOTS, INVALID_ROOTS_KIND, NOT_PERMITTED].contains(&problem.reason)
}

/// Option: how client certificates are requested.
const TERMINATE_MODE: &str = "gateway.istio.io/tls-terminate-mode";
/// Option: cipher suites.
const CIPHER_SUITES: &str = "gateway.istio.io/tls-cipher-suites";

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

/// TLS settings of a server, and why it cannot be served: its certificates must exist and be permitted.
pub(super) fn server_tls(
    cx: &Context,
    reads: TlsReads,
    owner: &TlsOwner<'_>,
    listener: &Listener,
) -> (Option<ServerTls>, Option<StatusProblem>) {
    let Some(tls) = &listener.tls else { return (None, None) };
    let mut out = ServerTls::default();
    let mut problem = None;
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
                    return (Some(out), None);
                }
                "ISTIO_MUTUAL" => {
                    out.mode = ServerTlsMode::IstioMutual;
                    return (Some(out), None);
                }
                _ => ServerTlsMode::Simple,
            };
            problem = terminate(cx, reads, owner, listener, tls, &mut out).err();
        }
    }
    out.cipher_suites = cipher_suites(option(tls, CIPHER_SUITES));
    (Some(out), problem)
}

/// The same for agentgateways: they have one certificate, and no options.
pub(super) fn agentgateway_tls(
    cx: &Context,
    reads: TlsReads,
    owner: &TlsOwner<'_>,
    listener: &Listener,
) -> (Option<ServerTls>, Option<StatusProblem>) {
    let Some(tls) = &listener.tls else { return (None, None) };
    if tls.mode == Some(ListenerTlsMode::Passthrough) {
        return (Some(ServerTls { mode: ServerTlsMode::Passthrough, ..ServerTls::default() }), None);
    }
    let mut out = ServerTls { mode: ServerTlsMode::Simple, ..ServerTls::default() };
    if tls.certificates.len() != 1 {
        let message = "exactly 1 certificateRefs should be present for TLS termination";
        return (Some(out), Some(StatusProblem::new(INVALID_CERTIFICATE, message)));
    }
    let without_options = ListenerTls { options: BTreeMap::new(), ..tls.clone() };
    let problem = terminate(cx, reads, owner, listener, &without_options, &mut out).err();
    (Some(out), problem)
}

fn option<'a>(tls: &'a ListenerTls, name: &str) -> &'a str {
    tls.options.get(name).map(Text::as_str).unwrap_or_default()
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

/// Sets the names of the certificates.
///
/// # Errors
/// None of them can be used, or the root certificates cannot.
fn terminate(
    cx: &Context,
    TlsReads { grants, credentials }: TlsReads,
    owner: &TlsOwner<'_>,
    listener: &Listener,
    tls: &ListenerTls,
    out: &mut ServerTls,
) -> Result<(), StatusProblem> {
    if tls.certificates.len() > 2 {
        let message = "TLS mode can only support up to 2 server certificates";
        return Err(StatusProblem::new(INVALID_CERTIFICATE, message));
    }
    let secret = GroupKind { group: Text::default(), kind: "Secret".into() };
    let allowed = |reference: &ObjectRef| {
        let namespace = reference.namespace_in(owner.namespace);
        grants.allow(cx, (&owner.kind, owner.namespace), (&reference.kind, &namespace, &reference.name))
    };
    let object = |reference: &ObjectRef| {
        ObjectKey::new(owner.cluster.clone(), reference.namespace_in(owner.namespace), reference.name.clone())
    };
    let (mut names, mut problem): (Vec<Text>, _) = (Vec::new(), None);
    for reference in &tls.certificates {
        let (namespace, name) = (reference.namespace_in(owner.namespace), &reference.name);
        // Whether an object exists is told only to those that may refer to it.
        let found = if !allowed(reference) {
            let message = not_accessible("certificateRef", (name, &namespace), owner.namespace);
            Err(StatusProblem::new(NOT_PERMITTED, message))
        } else if reference.kind != secret {
            let message = format!("invalid certificate reference {}, only secret is allowed", shown(reference));
            Err(StatusProblem::new(INVALID_CERTIFICATE, message))
        } else {
            let checked = credentials.check_certificate(cx, &object(reference));
            checked.map(|()| format!("{}{namespace}/{name}", CredentialKind::GatewaySecret.prefix())).map_err(
                |problem| {
                    let message = format!("invalid certificate reference {}, {problem}", shown(reference));
                    StatusProblem::new(INVALID_CERTIFICATE, message)
                },
            )
        };
        match found {
            Ok(name) => names.push(name.into()),
            Err(found) => problem = StatusProblem::joined(problem, Some(found)),
        }
    }
    match names.len() {
        0 => return problem.map_or(Ok(()), Err),
        1 => out.credential_name = names.remove(0),
        _ => out.credential_names = names,
    }
    let validation = owner.gateway.frontend_tls.as_ref().map(|frontend| validation_of(frontend, listener.port));
    let Some(validation) = validation.filter(|validation| !validation.roots.is_empty()) else { return Ok(()) };
    let [root] = validation.roots.as_slice() else {
        return Err(StatusProblem::new(INVALID_ROOTS, "only one caCertificateRef is supported"));
    };
    let (namespace, name) = (root.namespace_in(owner.namespace), &root.name);
    if !allowed(root) {
        let message = not_accessible("caCertificateRef", (&namespace, name), owner.namespace);
        return Err(StatusProblem::new(NOT_PERMITTED, message));
    }
    let (kind, exists, written) = if root.kind == secret {
        (CredentialKind::GatewaySecret, credentials.has_roots(cx, &object(root)), "secret")
    } else if root.kind.is("", "ConfigMap") {
        (CredentialKind::ConfigMap, credentials.has_bundle(cx, &object(root)), "configmap")
    } else {
        let message =
            format!("invalid CA certificate reference {}, only secret and configmap are allowed", shown(root));
        return Err(StatusProblem::new(INVALID_ROOTS_KIND, message));
    };
    if !exists {
        let message =
            format!("invalid CA certificate reference {}, {written} {namespace}/{name} not found", shown(root));
        return Err(StatusProblem::new(INVALID_ROOTS, message));
    }
    out.ca_cert_credential_name = format!("{}{namespace}/{name}{ROOTS_SUFFIX}", kind.prefix()).into();
    let (mode, skip) = match (option(tls, TERMINATE_MODE), validation.allows_insecure) {
        ("MUTUAL", _) => (ServerTlsMode::Mutual, false),
        ("OPTIONAL_MUTUAL", _) => (ServerTlsMode::OptionalMutual, false),
        (_, true) => (ServerTlsMode::OptionalMutual, true),
        (_, false) => (ServerTlsMode::Mutual, false),
    };
    (out.mode, out.insecure_skip_verify) = (mode, Some(skip));
    Ok(())
}

/// A reference as conditions show it: `GROUP/KIND/NAME.NAMESPACE`, with the namespace that is written.
fn shown(reference: &ObjectRef) -> String {
    let ObjectRef { kind: GroupKind { group, kind }, name, namespace } = reference;
    format!("{group}/{kind}/{name}.{}", namespace.as_ref().map_or("", Text::as_str))
}

fn not_accessible(field: &str, (first, second): (&Text, &Text), local: &Text) -> String {
    format!("{field} {first}/{second} not accessible to a Gateway in namespace \"{local}\" (missing a ReferenceGrant?)")
}

fn validation_of(frontend: &FrontendTls, port: u16) -> &FrontendValidation {
    frontend.per_port.get(&port).unwrap_or(&frontend.default)
}
