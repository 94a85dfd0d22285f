//! Names of annotations and labels, and the checks of their values.

use std::net::IpAddr;
use std::str::FromStr;

use serde_json::Value as Json;
use sluice_model::ProxyConfig;
use sluice_parse::{Findings, merge_proxy_config};

use crate::pod::canonical;
use crate::proxy_config;
use sluice_template::quoted;

pub(crate) const INJECT: &str = "sidecar.istio.io/inject";
pub(crate) const STATUS: &str = "sidecar.istio.io/status";
pub(crate) const OVERRIDES: &str = "proxy.istio.io/overrides";
pub(crate) const PROXY_CONFIG: &str = "proxy.istio.io/config";
pub(crate) const TEMPLATES: &str = "inject.istio.io/templates";
pub(crate) const NATIVE_SIDECAR: &str = "sidecar.istio.io/nativeSidecar";
pub(crate) const INTERCEPTION_MODE: &str = "sidecar.istio.io/interceptionMode";
pub(crate) const PROXY_IMAGE_TYPE: &str = "sidecar.istio.io/proxyImageType";
pub(crate) const REWRITE_PROBES: &str = "sidecar.istio.io/rewriteAppHTTPProbers";
pub(crate) const STATUS_PORT: &str = "status.sidecar.istio.io/port";
pub(crate) const MERGE_METRICS: &str = "prometheus.istio.io/merge-metrics";
pub(crate) const NETWORK: &str = "topology.istio.io/network";

/// Maximum length of the name of a network interface.
const MAX_INTERFACE_BYTES: usize = 15;

type Check = fn(&str) -> Result<(), String>;

const CHECKS: [(&str, Check); 19] = [
    (INTERCEPTION_MODE, interception_mode),
    (STATUS_PORT, |value| port(value).map_err(|reason| format!("excludeInboundPorts invalid: {reason}"))),
    ("readiness.status.sidecar.istio.io/initialDelaySeconds", |value| unsigned(value, u64::from(u32::MAX))),
    ("readiness.status.sidecar.istio.io/periodSeconds", |value| unsigned(value, u64::from(u32::MAX))),
    ("readiness.status.sidecar.istio.io/failureThreshold", |value| unsigned(value, u64::from(u32::MAX))),
    ("traffic.sidecar.istio.io/includeOutboundIPRanges", |value| match value {
        "*" => Ok(()),
        value => address_ranges(value).map_err(|reason| format!("includeIPRanges invalid: {reason}")),
    }),
    ("traffic.sidecar.istio.io/excludeOutboundIPRanges", |value| {
        address_ranges(value).map_err(|reason| format!("excludeIPRanges invalid: {reason}"))
    }),
    ("traffic.sidecar.istio.io/includeInboundPorts", |value| match value {
        "*" => Ok(()),
        value => ports("includeInboundPorts", value),
    }),
    ("traffic.sidecar.istio.io/excludeInboundPorts", |value| ports("excludeInboundPorts", value)),
    ("traffic.sidecar.istio.io/excludeOutboundPorts", |value| ports("excludeOutboundPorts", value)),
    ("traffic.sidecar.istio.io/excludeInterfaces", interfaces),
    ("traffic.sidecar.istio.io/kubevirtInterfaces", interfaces),
    ("istio.io/reroute-virtual-interfaces", interfaces),
    (MERGE_METRICS, |value| parse_bool(value).map(|_| ())),
    (PROXY_CONFIG, proxy_config),
    ("sidecar.istio.io/proxyCPU", quantity),
    ("sidecar.istio.io/proxyMemory", quantity),
    ("sidecar.istio.io/proxyCPULimit", quantity),
    ("sidecar.istio.io/proxyMemoryLimit", quantity),
];

/// Checks the value of an annotation of a pod by the rules of injection. Other annotations have none.
///
/// # Errors
/// The value is invalid; injection refuses the pod for this reason.
pub fn check_annotation(name: &str, value: &str) -> Result<(), String> {
    CHECKS.iter().find(|(known, _)| *known == name).map_or(Ok(()), |(_, check)| check(value))
}

/// Checks the annotations of a pod. The error names all that are invalid.
pub(crate) fn check(annotations: &Json) -> Result<(), String> {
    let mut reasons = Vec::new();
    for (name, value) in annotations.as_object().into_iter().flatten() {
        if let Some(value) = value.as_str()
            && let Err(reason) = check_annotation(name, value)
        {
            reasons.push(format!("* invalid value '{value}' for annotation '{name}': {reason}"));
        }
    }
    match reasons.len() {
        0 => Ok(()),
        1 => Err(format!("1 error occurred:\n\t{}\n\n", reasons[0])),
        count => Err(format!("{count} errors occurred:\n\t{}\n\n", reasons.join("\n\t"))),
    }
}

/// A boolean in the forms that Go accepts.
pub(crate) fn parse_bool(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("strconv.ParseBool: parsing {}: invalid syntax", quoted(other))),
    }
}

fn interception_mode(value: &str) -> Result<(), String> {
    match value {
        "REDIRECT" | "TPROXY" | "NONE" => Ok(()),
        other => Err(format!("interceptionMode invalid, use REDIRECT,TPROXY,NONE: {other}")),
    }
}

fn unsigned(value: &str, limit: u64) -> Result<(), String> {
    let failure = |reason: &str| Err(format!("strconv.ParseUint: parsing {}: {reason}", quoted(value)));
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return failure("invalid syntax");
    }
    match value.parse::<u64>() {
        Ok(number) if number <= limit => Ok(()),
        _ => failure("value out of range"),
    }
}

fn port(value: &str) -> Result<(), String> {
    let checked = unsigned(value.trim(), u64::from(u16::MAX));
    checked.map_err(|reason| format!("failed parsing port '{value}': {reason}"))
}

fn ports(name: &str, value: &str) -> Result<(), String> {
    let value = value.trim();
    if value.is_empty() {
        return Ok(());
    }
    for part in value.split(',') {
        port(part).map_err(|reason| format!("{name} invalid: failed parsing port '{part}': {reason}"))?;
    }
    Ok(())
}

fn address_ranges(value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Ok(());
    }
    for range in value.split(',') {
        address_range(range).map_err(|reason| {
            format!("failed parsing cidr '{range}': netip.ParsePrefix({}): {reason}", quoted(range))
        })?;
    }
    Ok(())
}

fn address_range(range: &str) -> Result<(), String> {
    let (address, length) = range.rsplit_once('/').ok_or("no '/'")?;
    let address =
        IpAddr::from_str(address).map_err(|_| format!("ParseAddr({}): unable to parse IP", quoted(address)))?;
    let is_number = length == "0" || length.bytes().all(|byte| byte.is_ascii_digit()) && !length.starts_with('0');
    let bits: u16 = match length.parse() {
        Ok(bits) if is_number => bits,
        _ => return Err(format!("bad bits after slash: {}", quoted(length))),
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    if bits > most { Err("prefix length out of range".to_owned()) } else { Ok(()) }
}

fn interfaces(value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Ok(());
    }
    for name in value.split(',').map(str::trim) {
        if name.is_empty() {
            return Err("empty interface name".to_owned());
        }
        if name.len() > MAX_INTERFACE_BYTES {
            return Err(format!("interface name {} too long (max {MAX_INTERFACE_BYTES} chars)", quoted(name)));
        }
        let is_valid = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
        if !is_valid {
            return Err(format!("interface name {} contains invalid characters", quoted(name)));
        }
    }
    Ok(())
}

fn quantity(value: &str) -> Result<(), String> {
    if value.chars().any(char::is_control) {
        return Err("value contains control characters".to_owned());
    }
    canonical(value).map(|_| ()).map_err(str::to_owned)
}

fn proxy_config(value: &str) -> Result<(), String> {
    let parsed =
        proxy_config::parse(value).map_err(|reason| format!("failed to convert to apply proxy config: {reason}"))?;
    let findings = Findings::default();
    let _ = merge_proxy_config(ProxyConfig::default(), &parsed, "", &findings);
    let found = findings.into_vec();
    let refused = found.iter().find(|finding| finding.severity.is_refusal() && !finding.is_unknown_field());
    match refused {
        Some(finding) => Err(format!("{}: {}", finding.field_path, finding.reason)),
        None => Ok(()),
    }
}
