//! The annotations of Istio 1.31: names, stages, and the kinds of objects that may have them. They are facts of Istio's API.

/// Stage of a feature.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    Alpha,
    Beta,
    Stable,
}

use Stage::{Alpha, Beta, Stable};

/// An annotation that Istio defines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IstioAnnotation {
    pub(crate) name: &'static str,
    pub(crate) stage: Stage,
    pub(crate) is_deprecated: bool,
    /// Kinds of objects that may have it. `Any` stands for all kinds.
    pub(crate) kinds: &'static [&'static str],
}

const fn current(name: &'static str, stage: Stage, kinds: &'static [&'static str]) -> IstioAnnotation {
    IstioAnnotation { name, stage, is_deprecated: false, kinds }
}

const fn deprecated(name: &'static str, stage: Stage, kinds: &'static [&'static str]) -> IstioAnnotation {
    IstioAnnotation { name, stage, is_deprecated: true, kinds }
}

/// All annotations, by name.
#[rustfmt::skip]
pub(crate) static ISTIO_ANNOTATIONS: &[IstioAnnotation] = &[
    deprecated("alpha.istio.io/canonical-serviceaccounts", Alpha, &["Service"]),
    deprecated("alpha.istio.io/kubernetes-serviceaccounts", Alpha, &["Service"]),
    current("ambient.istio.io/bypass-inbound-capture", Alpha, &["Pod"]),
    current("ambient.istio.io/dns-capture", Alpha, &["Pod"]),
    current("ambient.istio.io/redirection", Beta, &["Pod"]),
    current("ambient.istio.io/waypoint-inbound-binding", Alpha, &["GatewayClass", "Gateway"]),
    current("galley.istio.io/analyze-suppress", Alpha, &["Any"]),
    current("gateway.istio.io/controller-version", Alpha, &["Any"]),
    current("gateway.istio.io/name-override", Alpha, &["Gateway"]),
    current("gateway.istio.io/service-account", Alpha, &["Gateway"]),
    current("inject.istio.io/templates", Alpha, &["Pod"]),
    current("istio.io/autoRegistrationGroup", Alpha, &["WorkloadEntry"]),
    current("istio.io/connectedAt", Alpha, &["WorkloadEntry"]),
    current("istio.io/disconnectedAt", Alpha, &["WorkloadEntry"]),
    current("istio.io/dry-run", Alpha, &["AuthorizationPolicy"]),
    current("istio.io/reroute-virtual-interfaces", Alpha, &["Pod"]),
    current("istio.io/rev", Alpha, &["Pod"]),
    current("istio.io/use-waypoint-canary-weight", Alpha, &["Service", "ServiceEntry", "Namespace"]),
    current("istio.io/workloadController", Alpha, &["WorkloadEntry"]),
    current("kubernetes.io/ingress.class", Stable, &["Ingress"]),
    current("networking.istio.io/exportTo", Alpha, &["Service"]),
    current("networking.istio.io/service-type", Alpha, &["Gateway"]),
    current("networking.istio.io/traffic-distribution", Alpha, &["Namespace", "Service", "ServiceEntry"]),
    current("prometheus.istio.io/merge-metrics", Alpha, &["Pod"]),
    current("proxy.istio.io/config", Beta, &["Pod"]),
    current("proxy.istio.io/overrides", Alpha, &["Pod"]),
    current("readiness.status.sidecar.istio.io/applicationPorts", Alpha, &["Pod"]),
    current("readiness.status.sidecar.istio.io/failureThreshold", Alpha, &["Pod"]),
    current("readiness.status.sidecar.istio.io/initialDelaySeconds", Alpha, &["Pod"]),
    current("readiness.status.sidecar.istio.io/periodSeconds", Alpha, &["Pod"]),
    current("sidecar.istio.io/agentLogLevel", Alpha, &["Pod"]),
    current("sidecar.istio.io/bootstrapOverride", Alpha, &["Pod"]),
    current("sidecar.istio.io/componentLogLevel", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/discoveryAddress", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/extraStatTags", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/inject", Beta, &["Pod"]),
    current("sidecar.istio.io/interceptionMode", Alpha, &["Pod"]),
    current("sidecar.istio.io/logLevel", Alpha, &["Pod"]),
    current("sidecar.istio.io/nativeSidecar", Alpha, &["Pod"]),
    current("sidecar.istio.io/proxyCPU", Alpha, &["Pod"]),
    current("sidecar.istio.io/proxyCPULimit", Alpha, &["Pod"]),
    current("sidecar.istio.io/proxyImage", Alpha, &["Pod"]),
    current("sidecar.istio.io/proxyImageType", Alpha, &["Pod"]),
    current("sidecar.istio.io/proxyMemory", Alpha, &["Pod"]),
    current("sidecar.istio.io/proxyMemoryLimit", Alpha, &["Pod"]),
    current("sidecar.istio.io/rewriteAppHTTPProbers", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/statsCompression", Alpha, &["Pod"]),
    current("sidecar.istio.io/statsEvictionInterval", Alpha, &["Pod"]),
    current("sidecar.istio.io/statsFlushInterval", Alpha, &["Pod"]),
    current("sidecar.istio.io/statsHistogramBins", Alpha, &["Pod"]),
    current("sidecar.istio.io/statsHistogramBuckets", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/statsInclusionPrefixes", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/statsInclusionRegexps", Alpha, &["Pod"]),
    deprecated("sidecar.istio.io/statsInclusionSuffixes", Alpha, &["Pod"]),
    current("sidecar.istio.io/status", Alpha, &["Pod"]),
    current("sidecar.istio.io/userVolume", Alpha, &["Pod"]),
    current("sidecar.istio.io/userVolumeMount", Alpha, &["Pod"]),
    current("status.sidecar.istio.io/port", Alpha, &["Pod"]),
    current("topology.istio.io/controlPlaneClusters", Alpha, &["Namespace"]),
    current("traffic.istio.io/nodeSelector", Stable, &["Service"]),
    current("traffic.sidecar.istio.io/excludeInboundPorts", Alpha, &["Pod"]),
    current("traffic.sidecar.istio.io/excludeInterfaces", Alpha, &["Pod"]),
    current("traffic.sidecar.istio.io/excludeOutboundIPRanges", Alpha, &["Pod"]),
    current("traffic.sidecar.istio.io/excludeOutboundPorts", Alpha, &["Pod"]),
    current("traffic.sidecar.istio.io/includeInboundPorts", Alpha, &["Pod"]),
    current("traffic.sidecar.istio.io/includeOutboundIPRanges", Alpha, &["Pod"]),
    current("traffic.sidecar.istio.io/includeOutboundPorts", Alpha, &["Pod"]),
    deprecated("traffic.sidecar.istio.io/kubevirtInterfaces", Alpha, &["Pod"]),
];

/// The definition of an annotation.
pub(crate) fn find(name: &str) -> Option<&'static IstioAnnotation> {
    ISTIO_ANNOTATIONS.iter().find(|annotation| annotation.name == name)
}

/// Whether an annotation is in a domain of Istio, or is the one of Kubernetes that Istio reads.
pub(crate) fn is_istio(name: &str) -> bool {
    name == "kubernetes.io/ingress.class" || name.split('/').next().is_some_and(|domain| domain.ends_with("istio.io"))
}

#[cfg(test)]
mod tests;
