//! Addresses of a service for a client.

use sluice_model::{Service, ServiceSource, Text};

use crate::listener_settings::ListenerSettings;

/// The address of a service for the client, preferably of an address family of the client; `None` if it has none.
pub(super) fn service_address(settings: &ListenerSettings, service: &Service) -> Option<Text> {
    let own = service.addresses.get(&settings.profile.cluster).map_or(&[][..], Vec::as_slice);
    if let Some(address) = own.iter().find(|address| has_family(settings, address)) {
        return Some(address.clone());
    }
    let declared = service.addresses_for(&settings.profile.cluster).first();
    if declared.is_none() && settings.profile.auto_allocated {
        return service.auto_allocated_addresses.iter().find(|address| has_family(settings, address)).cloned();
    }
    declared.cloned()
}

/// The other addresses of a service for the client, of the address families of the client.
pub(super) fn extra_addresses(settings: &ListenerSettings, service: &Service) -> Vec<Text> {
    let mut addresses = service.addresses.get(&settings.profile.cluster).cloned().unwrap_or_default();
    if addresses.is_empty() && settings.profile.auto_allocated {
        addresses.clone_from(&service.auto_allocated_addresses);
    }
    addresses.retain(|address| has_family(settings, address));
    // The second family is used only in dual-stack mode.
    if !settings.dual_stack
        && let Some(first) = addresses.first().cloned()
    {
        addresses.retain(|address| address.contains(':') == first.contains(':'));
    }
    addresses.drain(..1.min(addresses.len()));
    addresses
}

/// The addresses at which a waypoint serves a service, sorted; blocks of addresses too. `more`: those of a global service in
/// other clusters.
pub(super) fn vip_addresses(settings: &ListenerSettings, service: &Service, more: &[Text]) -> Vec<Text> {
    let mut addresses = service.addresses.get(&settings.profile.cluster).cloned().unwrap_or_default();
    if addresses.is_empty() {
        addresses.clone_from(&service.auto_allocated_addresses);
    }
    addresses.retain(|address| has_family(settings, address));
    if addresses.is_empty() {
        let declared = service.addresses_for(&settings.profile.cluster);
        let of_entry = service.source == ServiceSource::ServiceEntry;
        let usable = declared.iter().filter(|address| of_entry || has_family(settings, address));
        addresses.extend(usable.take(if of_entry { usize::MAX } else { 1 }).cloned());
    }
    addresses.extend(more.iter().filter(|address| has_family(settings, address)).cloned());
    addresses.sort();
    addresses.dedup();
    addresses
}

/// Whether the proxy has the address family of an address.
fn has_family(settings: &ListenerSettings, address: &str) -> bool {
    if address.contains(':') { settings.ipv6() } else { settings.ipv4() }
}
