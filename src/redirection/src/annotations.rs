//! Settings of a pod from its annotations, as `istio-cni` reads them.

use std::collections::BTreeMap;

use nix::ifaddrs::getifaddrs;

use crate::ambient;
use crate::sidecar::{DnsCapture, Interception, Settings};
use crate::values::{Included, Interface, Owner, Ports, ValueError, parse_list};

/// Ports of the proxy for probes and metrics, which are never redirected.
const PROXY_PORTS: [u16; 3] = [15020, 15021, 15090];

/// What is read of a pod with a sidecar.
#[derive(Clone, Copy, Debug)]
pub struct SidecarPod<'a> {
    /// Its annotations.
    pub annotations: &'a BTreeMap<String, String>,
    /// The environment of the container of the proxy.
    pub environment: &'a BTreeMap<String, String>,
    /// `runAsUser` of that container.
    pub user: Option<u32>,
    /// `runAsGroup` of that container.
    pub group: Option<u32>,
}

/// An annotation that is not valid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("metadata.annotations[{name}]: {reason}")]
pub struct AnnotationError {
    /// Its name.
    pub name: &'static str,
    /// The reason.
    pub reason: ValueError,
}

/// The settings of a pod with a sidecar. IPv6 is decided by [`has_ipv6`], in the namespace of the pod.
///
/// # Errors
/// An annotation is invalid. The pod must not start, because its traffic would not be redirected as it says.
pub fn sidecar(pod: SidecarPod<'_>) -> Result<Settings, AnnotationError> {
    let read = Annotations(pod.annotations);
    let mut excluded =
        read.list::<Ports>("traffic.sidecar.istio.io/excludeInboundPorts", "15020").map(|ports| ports.to_vec())?;
    excluded.extend(PROXY_PORTS.map(Ports::from));
    excluded.sort_unstable();
    excluded.dedup();
    let flag = |name: &str| pod.environment.get(name).and_then(|text| parse_bool(text)).unwrap_or(false);
    let dns = if flag("ISTIO_META_DNS_CAPTURE") { DnsCapture::All } else { DnsCapture::None };
    let owner = |id: Option<u32>| Owner::id(id.filter(|id| *id != 0).unwrap_or(1337));
    let interfaces = match pod.annotations.contains_key("istio.io/reroute-virtual-interfaces") {
        true => "istio.io/reroute-virtual-interfaces",
        false => "traffic.sidecar.istio.io/kubevirtInterfaces",
    };
    Ok(Settings {
        users: vec![owner(pod.user)],
        groups: vec![owner(pod.group)],
        interception: read.interception()?,
        inbound_ports: read.selection("traffic.sidecar.istio.io/includeInboundPorts", "*")?,
        inbound_ports_excluded: excluded,
        outbound_ranges: read.selection("traffic.sidecar.istio.io/includeOutboundIPRanges", "*")?,
        outbound_ranges_excluded: read.list("traffic.sidecar.istio.io/excludeOutboundIPRanges", "")?,
        outbound_ports: read.list("traffic.sidecar.istio.io/includeOutboundPorts", "")?,
        outbound_ports_excluded: read.list("traffic.sidecar.istio.io/excludeOutboundPorts", "15020")?,
        excluded_interfaces: read.list("traffic.sidecar.istio.io/excludeInterfaces", "")?,
        virtual_interfaces: read.list(interfaces, "")?,
        dns,
        drop_invalid: flag("INVALID_DROP"),
        ..Settings::default()
    })
}

/// The settings of a pod of the ambient mesh. Values that are not valid are ignored, and returned.
#[must_use]
pub fn ambient(annotations: &BTreeMap<String, String>) -> (ambient::PodSettings, Vec<AnnotationError>) {
    let mut errors = Vec::new();
    let mut flag = |name: &'static str| {
        let text = annotations.get(name)?;
        let value = parse_bool(text);
        if value.is_none() {
            let reason = ValueError::new(format!("invalid value {text:?}: not a boolean"));
            errors.push(AnnotationError { name, reason });
        }
        value
    };
    let bypass_inbound = flag("ambient.istio.io/bypass-inbound-capture").unwrap_or(false);
    let dns_capture = flag("ambient.istio.io/dns-capture");
    let interfaces: Result<Vec<Interface>, _> =
        Annotations(annotations).list("istio.io/reroute-virtual-interfaces", "");
    let virtual_interfaces = interfaces.unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    (ambient::PodSettings { bypass_inbound, dns_capture, virtual_interfaces }, errors)
}

/// Whether the rules of a pod with a sidecar are also for IPv6, by the addresses of the namespace of the calling thread: the
/// first one that is neither loopback nor link-local is an IPv6 address, or any is with `dual_stack` (`ISTIO_DUAL_STACK`).
#[must_use]
pub fn has_ipv6(dual_stack: bool) -> bool {
    let Ok(interfaces) = getifaddrs() else { return false };
    let mut addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        if let Some(v4) = address.as_sockaddr_in() {
            let ip = v4.ip();
            return (!ip.is_loopback() && !ip.is_link_local()).then_some(false);
        }
        let ip = address.as_sockaddr_in6()?.ip();
        (!ip.is_loopback() && !ip.is_unicast_link_local()).then_some(true)
    });
    if dual_stack { addresses.any(|is_ipv6| is_ipv6) } else { addresses.next().unwrap_or(false) }
}

/// A boolean as Go's `strconv.ParseBool` reads it.
#[must_use]
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

struct Annotations<'a>(&'a BTreeMap<String, String>);

impl Annotations<'_> {
    fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        self.0.get(name).map_or(default, String::as_str)
    }

    fn list<T: std::str::FromStr<Err = ValueError>>(
        &self,
        name: &'static str,
        default: &str,
    ) -> Result<Vec<T>, AnnotationError> {
        parse_list(self.text(name, default)).map_err(|reason| AnnotationError { name, reason })
    }

    fn selection<T: std::str::FromStr<Err = ValueError>>(
        &self,
        name: &'static str,
        default: &str,
    ) -> Result<Included<T>, AnnotationError> {
        Included::parse(self.text(name, default)).map_err(|reason| AnnotationError { name, reason })
    }

    fn interception(&self) -> Result<Interception, AnnotationError> {
        let name = "sidecar.istio.io/interceptionMode";
        self.text(name, "REDIRECT").parse().map_err(|reason| AnnotationError { name, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn read(annotations: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Settings, AnnotationError> {
        let (annotations, environment) = (map(annotations), map(environment));
        sidecar(SidecarPod { annotations: &annotations, environment: &environment, user: Some(0), group: None })
    }

    #[test]
    fn pod_without_annotations_has_everything_redirected_except_ports_of_the_proxy() {
        let settings = read(&[], &[]).expect("settings");
        assert_eq!(settings.inbound_ports, Included::All);
        assert_eq!(settings.outbound_ranges, Included::All);
        assert_eq!(settings.inbound_ports_excluded, [15020, 15021, 15090].map(Ports::from));
        assert_eq!(settings.users, [Owner::id(1337)]);
        assert_eq!(settings.dns, DnsCapture::None);
    }

    #[test]
    fn annotations_and_environment_are_read() {
        let annotations = [
            ("sidecar.istio.io/interceptionMode", "TPROXY"),
            ("traffic.sidecar.istio.io/excludeInboundPorts", "22,15020"),
            ("traffic.sidecar.istio.io/includeInboundPorts", "80,443"),
            ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.0.0.0/8,fd00::/8"),
            ("traffic.sidecar.istio.io/kubevirtInterfaces", "old0"),
            ("istio.io/reroute-virtual-interfaces", "vm0"),
        ];
        let settings = read(&annotations, &[("ISTIO_META_DNS_CAPTURE", "true")]).expect("settings");
        assert_eq!(settings.interception, Interception::Tproxy);
        assert_eq!(settings.inbound_ports_excluded, [22, 15020, 15021, 15090].map(Ports::from));
        assert_eq!(settings.inbound_ports, Included::Only([80, 443].map(Ports::from).to_vec()));
        assert_eq!(settings.virtual_interfaces, ["vm0".parse().expect("an interface")]);
        assert_eq!(settings.dns, DnsCapture::All);
    }

    #[test]
    fn invalid_annotation_is_named() {
        for (name, value) in [
            ("sidecar.istio.io/interceptionMode", "NONE"),
            ("traffic.sidecar.istio.io/excludeInboundPorts", "http"),
            ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.0.0.0/40"),
            ("traffic.sidecar.istio.io/excludeInterfaces", "eth0; drop"),
        ] {
            let error = read(&[(name, value)], &[]).expect_err(name).to_string();
            assert!(error.starts_with(&format!("metadata.annotations[{name}]: ")), "{error}");
        }
    }

    #[test]
    fn invalid_value_of_an_ambient_pod_is_ignored_and_returned() {
        let annotations = map(&[
            ("ambient.istio.io/bypass-inbound-capture", "yes"),
            ("ambient.istio.io/dns-capture", "false"),
            ("istio.io/reroute-virtual-interfaces", " vm0 , vm1"),
        ]);
        let (settings, errors) = ambient(&annotations);
        assert_eq!((settings.bypass_inbound, settings.dns_capture), (false, Some(false)));
        assert_eq!(settings.virtual_interfaces.len(), 2);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].to_string().contains("bypass-inbound-capture"), "{errors:?}");
    }
}
