//! Policies for backends.

use sluice_model::{CertificateKeyPair, EndpointPicker, Host, ObjectKey, Redacted, Text};
use sluice_proto::agentgateway::backend_policy_spec::backend_tls::VerificationMode;
use sluice_proto::agentgateway::backend_policy_spec::inference_routing::FailureMode;
use sluice_proto::agentgateway::backend_policy_spec::{BackendTls, InferenceRouting, Kind as BackendKind};
use sluice_proto::agentgateway::policy::Kind as PolicyKind;
use sluice_proto::agentgateway::policy_target::{Kind as TargetKind, ServiceTarget};
use sluice_proto::agentgateway::resource::Kind;
use sluice_proto::agentgateway::{BackendPolicySpec, Policy, PolicyTarget};

use super::{AgentgatewayResource, BackendService, reference};

/// What stands for root certificates that cannot be used. Connections to the backend then fail.
const UNUSABLE: &[u8] = b"invalid";

/// Inputs of the TLS settings of a backend.
#[derive(Clone, Debug)]
pub struct BackendTlsInputs<'a> {
    /// The BackendTLSPolicy.
    pub policy: &'a ObjectKey,
    /// Host of the backend.
    pub host: &'a Host,
    /// The port that the policy is for; `None` for all.
    pub port: Option<u16>,
    /// The roots that its certificate is verified by.
    pub roots: BackendRoots<'a>,
    /// The certificate of the proxy; `None` if it presents none, or may not have it.
    pub certificate: Option<&'a CertificateKeyPair>,
    /// Name that is sent as SNI and verified.
    pub hostname: &'a str,
    /// Other accepted names.
    pub subject_alt_names: &'a [Text],
}

/// The roots that the certificate of a backend is verified by.
#[derive(Clone, Copy, Debug)]
pub enum BackendRoots<'a> {
    /// Those of the machine of the proxy.
    System,
    /// These, as PEM.
    Given(&'a [u8]),
    /// They cannot be used: connections fail.
    Unusable,
}

/// The TLS settings of a backend.
#[must_use]
pub fn build_backend_tls(inputs: &BackendTlsInputs<'_>) -> AgentgatewayResource {
    let ObjectKey { namespace, name, .. } = inputs.policy;
    let roots = match inputs.roots {
        BackendRoots::System => None,
        BackendRoots::Given(roots) => Some(roots.to_vec()),
        BackendRoots::Unusable => Some(UNUSABLE.to_vec()),
    };
    let bytes = |bytes: &Redacted| bytes.0.to_vec();
    let tls = BackendTls {
        cert: inputs.certificate.map(|certificate| bytes(&certificate.chain)),
        key: inputs.certificate.map(|certificate| bytes(&certificate.key)),
        root: roots,
        hostname: Some(inputs.hostname.to_owned()),
        verify_subject_alt_names: inputs.subject_alt_names.iter().map(ToString::to_string).collect(),
        ..BackendTls::default()
    };
    let key = format!("{namespace}/{name}:backend-tls:{namespace}/{}", inputs.host);
    // A policy may have several ports of a backend as targets.
    let key = inputs.port.map_or(key.clone(), |port| format!("{key}:{port}"));
    policy(key, (namespace, inputs.host, inputs.port), BackendKind::BackendTls(tls))
}

/// The policies of an InferencePool: its endpoints are picked by a service, whose certificate is not verified. `host` is that of the
/// pool.
#[must_use]
pub fn build_pool_policies(pool: &ObjectKey, host: &Host, picker: &EndpointPicker) -> [AgentgatewayResource; 2] {
    let ObjectKey { namespace, name, .. } = pool;
    let service = BackendService { namespace: namespace.clone(), host: picker.host.clone(), port: picker.port };
    let failure_mode = if picker.fails_open { FailureMode::FailOpen } else { FailureMode::FailClosed };
    let routing = InferenceRouting { endpoint_picker: Some(reference(&service)), failure_mode: failure_mode.into() };
    let tls = BackendTls { verification: VerificationMode::InsecureAll.into(), ..BackendTls::default() };
    [
        policy(
            format!("{namespace}/{name}:inference"),
            (namespace, host, None),
            BackendKind::InferenceRouting(routing),
        ),
        policy(
            format!("{namespace}/{name}:inferencetls"),
            (namespace, &picker.host, Some(picker.port)),
            BackendKind::BackendTls(tls),
        ),
    ]
}

/// A policy for a service, or one of its ports.
fn policy(
    key: String,
    (namespace, host, port): (&Text, &Host, Option<u16>),
    kind: BackendKind,
) -> AgentgatewayResource {
    let target =
        ServiceTarget { namespace: namespace.to_string(), hostname: host.to_string(), port: port.map(u32::from) };
    AgentgatewayResource::new(Kind::Policy(Policy {
        key,
        target: Some(PolicyTarget { kind: Some(TargetKind::Service(target)) }),
        kind: Some(PolicyKind::Backend(BackendPolicySpec { kind: Some(kind) })),
    }))
}
