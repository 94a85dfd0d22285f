//! Annotations of Istio (IST0107, IST0108, IST0125, IST0135).

use std::net::IpAddr;

use crate::codes::{DEPRECATED_ANNOTATION, INVALID_ANNOTATION, MISPLACED_ANNOTATION, UNKNOWN_ANNOTATION};
use crate::resource::{DEPLOYMENT, NAMESPACE, POD, SERVICE};
use crate::{AnalyzedObject, MeshObjects, MessageList};

const INJECT: &str = "sidecar.istio.io/inject";

/// Written by injection and read by no one else.
const IGNORED: [&str; 2] = ["sidecar.istio.io/status", "kubectl.kubernetes.io/last-applied-configuration"];

/// Annotations by the kinds that may have them. `Any` stands for all kinds.
#[rustfmt::skip]
const KNOWN: &[(&[&str], &[&str])] = &[
    (&["Any"], &[
        "galley.istio.io/analyze-suppress", "install.operator.istio.io/chart-owner",
        "install.operator.istio.io/owner-generation", "install.operator.istio.io/version",
    ]),
    (&["AuthorizationPolicy"], &["istio.io/dry-run"]),
    (&["Gateway"], &[
        "gateway.istio.io/name-override", "gateway.istio.io/service-account", "gateway.istio.io/tls-terminate-mode",
    ]),
    (&["Ingress"], &["kubernetes.io/ingress.class"]),
    (&["Namespace", "Service", "Pod", "WorkloadEntry"], &["ambient.istio.io/waypoint-inbound-binding"]),
    (&["Pod"], &[
        "alpha.istio.io/identity", "ambient.istio.io/bypass-inbound-capture", "ambient.istio.io/dns-capture",
        "ambient.istio.io/redirection", "inject.istio.io/templates", "istio.io/reroute-virtual-interfaces",
        "istio.io/rev", "prometheus.istio.io/merge-metrics", "proxy.istio.io/config", "proxy.istio.io/overrides",
        "readiness.status.sidecar.istio.io/applicationPorts",
        "readiness.status.sidecar.istio.io/failureThreshold",
        "readiness.status.sidecar.istio.io/initialDelaySeconds", "readiness.status.sidecar.istio.io/periodSeconds",
        "sidecar.istio.io/agentLogLevel", "sidecar.istio.io/bootstrapOverride",
        "sidecar.istio.io/componentLogLevel", "sidecar.istio.io/controlPlaneAuthPolicy",
        "sidecar.istio.io/discoveryAddress", "sidecar.istio.io/enableCoreDump", "sidecar.istio.io/extraStatTags",
        INJECT, "sidecar.istio.io/interceptionMode", "sidecar.istio.io/logLevel", "sidecar.istio.io/nativeSidecar",
        "sidecar.istio.io/proxyCPU", "sidecar.istio.io/proxyCPULimit", "sidecar.istio.io/proxyImage",
        "sidecar.istio.io/proxyImageType", "sidecar.istio.io/proxyMemory", "sidecar.istio.io/proxyMemoryLimit",
        "sidecar.istio.io/rewriteAppHTTPProbers", "sidecar.istio.io/statsCompression",
        "sidecar.istio.io/statsEvictionInterval", "sidecar.istio.io/statsHistogramBuckets",
        "sidecar.istio.io/statsInclusionPrefixes", "sidecar.istio.io/statsInclusionRegexps",
        "sidecar.istio.io/statsInclusionSuffixes", "sidecar.istio.io/status", "sidecar.istio.io/userVolume",
        "sidecar.istio.io/userVolumeMount", "status.sidecar.istio.io/port",
        "traffic.sidecar.istio.io/excludeInboundPorts", "traffic.sidecar.istio.io/excludeInterfaces",
        "traffic.sidecar.istio.io/excludeOutboundIPRanges", "traffic.sidecar.istio.io/excludeOutboundPorts",
        "traffic.sidecar.istio.io/includeInboundPorts", "traffic.sidecar.istio.io/includeOutboundIPRanges",
        "traffic.sidecar.istio.io/includeOutboundPorts", "traffic.sidecar.istio.io/kubevirtInterfaces",
    ]),
    (&["Service"], &[
        "alpha.istio.io/canonical-serviceaccounts", "alpha.istio.io/kubernetes-serviceaccounts",
        "networking.istio.io/exportTo", "traffic.istio.io/nodeSelector",
    ]),
    (&["Service", "ServiceEntry", "Namespace"], &["networking.istio.io/traffic-distribution"]),
    (&["Gateway", "Service"], &["networking.istio.io/address-type", "networking.istio.io/service-type"]),
    (&["Pod", "WorkloadEntry"], &["security.istio.io/tlsMode"]),
    (&["Secret"], &["networking.istio.io/cluster", "topology.istio.io/gatewayNetworkingV1"]),
    (&["Namespace"], &["topology.istio.io/controlPlaneClusters"]),
    (&["WorkloadEntry"], &[
        "istio.io/autoRegistrationGroup", "istio.io/connectedAt", "istio.io/disconnectedAt",
        "istio.io/workloadController",
    ]),
];

const DEPRECATED: [&str; 9] = [
    "alpha.istio.io/canonical-serviceaccounts",
    "alpha.istio.io/identity",
    "alpha.istio.io/kubernetes-serviceaccounts",
    "sidecar.istio.io/controlPlaneAuthPolicy",
    "sidecar.istio.io/discoveryAddress",
    INJECT,
    "sidecar.istio.io/statsInclusionPrefixes",
    "sidecar.istio.io/statsInclusionRegexps",
    "sidecar.istio.io/statsInclusionSuffixes",
];

pub(crate) fn run<'m>(mesh: &'m MeshObjects<'m>, report: &mut MessageList<'m>) {
    for kind in [NAMESPACE, SERVICE, POD, DEPLOYMENT] {
        for resource in mesh.all(kind) {
            for (name, value) in resource.annotations() {
                if is_istio(name) && !IGNORED.contains(&name) {
                    check(resource, name, value, report);
                }
            }
        }
    }
}

/// Whether Istio owns an annotation.
fn is_istio(name: &str) -> bool {
    name == "kubernetes.io/ingress.class" || name.split('/').next().is_some_and(|domain| domain.ends_with("istio.io"))
}

fn check<'m>(resource: &'m AnalyzedObject, name: &str, value: &str, report: &mut MessageList<'m>) {
    let field = format!("metadata.annotations[{name}]");
    let Some((kinds, _)) = KNOWN.iter().find(|(_, names)| names.contains(&name)) else {
        report.add(&UNKNOWN_ANNOTATION, resource, field, format!("annotation {name} is unknown and has no effect"));
        return;
    };
    // The label replaces the annotation; objects have both for older versions.
    if DEPRECATED.contains(&name) && !(name == INJECT && resource.label(INJECT).is_some()) {
        let instead = if name == INJECT { "; use the label of the same name" } else { "" };
        let text = format!("annotation {name} is deprecated and may have no effect in later versions{instead}");
        report.add(&DEPRECATED_ANNOTATION, resource, field.as_str(), text);
    }
    if kinds.contains(&"Any") {
        return;
    }
    if !kinds.contains(&resource.kind().name) {
        let text = format!("annotation {name} has an effect on {} only", kinds.join(", "));
        report.add(&MISPLACED_ANNOTATION, resource, field, text);
    } else if let Err(reason) = validate(name, value) {
        report.add(&INVALID_ANNOTATION, resource, field, format!("annotation {name} is invalid: {reason}"));
    }
}

fn validate(name: &str, value: &str) -> Result<(), String> {
    let short = name.rsplit_once('/').map_or(name, |(_, short)| short);
    match short {
        "interceptionMode" => one_of(value, &["REDIRECT", "TPROXY", "NONE"]),
        "includeOutboundIPRanges" if value == "*" => Ok(()),
        "includeOutboundIPRanges" | "excludeOutboundIPRanges" => each(value, address_block),
        "includeInboundPorts" if value == "*" => Ok(()),
        "includeInboundPorts"
        | "excludeInboundPorts"
        | "includeOutboundPorts"
        | "excludeOutboundPorts"
        | "applicationPorts" => each(value, port),
        "port" if name.starts_with("status.") => port(value),
        "initialDelaySeconds" | "periodSeconds" | "failureThreshold" => {
            value.parse::<u32>().map(drop).map_err(|_| format!("{value:?} is not a whole number"))
        }
        "rewriteAppHTTPProbers" | "enableCoreDump" => {
            one_of(value, &["true", "false", "1", "0", "t", "f", "T", "F", "TRUE", "FALSE", "True", "False"])
        }
        _ => Ok(()),
    }
}

fn one_of(value: &str, accepted: &[&str]) -> Result<(), String> {
    let accepts = accepted.contains(&value);
    if accepts { Ok(()) } else { Err(format!("{value:?} is not one of {}", accepted.join(", "))) }
}

fn each(value: &str, check: fn(&str) -> Result<(), String>) -> Result<(), String> {
    value.split(',').map(str::trim).filter(|part| !part.is_empty()).try_for_each(check)
}

fn port(value: &str) -> Result<(), String> {
    value.parse::<u16>().map(drop).map_err(|_| format!("{value:?} is not a port between 0 and 65535"))
}

fn address_block(value: &str) -> Result<(), String> {
    let error = || format!("{value:?} is not an address block such as 10.0.0.0/8");
    let (address, length) = value.split_once('/').ok_or_else(error)?;
    let address: IpAddr = address.parse().map_err(|_| error())?;
    let length: u8 = length.parse().map_err(|_| error())?;
    if length <= if address.is_ipv4() { 32 } else { 128 } { Ok(()) } else { Err(error()) }
}
