//! Statistics names from the patterns of the mesh (N28).

use sluice_model::{Service, ServiceSource};

/// Expands a pattern for a service port. `target_port` is 0 for outbound clusters.
pub(super) fn fill(
    pattern: &str,
    service: &Service,
    subset: &str,
    port: u16,
    port_name: &str,
    target_port: u32,
) -> String {
    let host = service.host.as_str();
    let (short, name) = match service.source {
        ServiceSource::Kubernetes => (format!("{}.{}", service.name, service.namespace), service.name.to_string()),
        ServiceSource::ServiceEntry => (host.to_owned(), host.to_owned()),
    };
    pattern
        .replace("%SERVICE%", &short)
        .replace("%SERVICE_NAME%", &name)
        .replace("%SERVICE_FQDN%", host)
        .replace("%SUBSET_NAME%", subset)
        .replace("%TARGET_PORT%", &target_port.to_string())
        .replace("%SERVICE_PORT%", &port.to_string())
        .replace("%SERVICE_PORT_NAME%", port_name)
}
