//! Statistics names from the patterns of the mesh (N28).

use sluice_model::{Service, ServiceSource};

/// The values of the placeholders of a pattern.
pub(crate) struct StatNameValues<'a> {
    /// Host of the service.
    pub(crate) host: &'a str,
    /// Name and namespace, if the service is a Kubernetes Service.
    pub(crate) kubernetes: Option<(&'a str, &'a str)>,
    /// Subset, or empty.
    pub(crate) subset: &'a str,
    /// Port number of the service.
    pub(crate) port: u32,
    /// Port name of the service.
    pub(crate) port_name: &'a str,
    /// Port of the workload; 0 for outbound names. With `None`, the placeholder is not replaced, as in istiod for inbound
    /// listeners.
    pub(crate) target_port: Option<u32>,
}

impl<'a> StatNameValues<'a> {
    /// The values of an outbound name.
    pub(crate) fn outbound(service: &'a Service, subset: &'a str, port: u32, port_name: &'a str) -> Self {
        let kubernetes = (service.source == ServiceSource::Kubernetes).then_some((&*service.name, &*service.namespace));
        Self { host: service.host.as_str(), kubernetes, subset, port, port_name, target_port: Some(0) }
    }

    /// Replaces the placeholders of a pattern.
    pub(crate) fn expand(&self, pattern: &str) -> String {
        let (short, name) = match self.kubernetes {
            Some((name, namespace)) => (format!("{name}.{namespace}"), name),
            None => (self.host.to_owned(), self.host),
        };
        let expanded = pattern
            .replace("%SERVICE%", &short)
            .replace("%SERVICE_NAME%", name)
            .replace("%SERVICE_FQDN%", self.host)
            .replace("%SUBSET_NAME%", self.subset);
        let expanded = match self.target_port {
            Some(port) => expanded.replace("%TARGET_PORT%", &port.to_string()),
            None => expanded,
        };
        expanded.replace("%SERVICE_PORT%", &self.port.to_string()).replace("%SERVICE_PORT_NAME%", self.port_name)
    }
}
