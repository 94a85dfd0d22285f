//! Listeners of Gateways and ListenerSets.

use std::collections::BTreeSet;

use sluice_model::gateway_api::{AllowedRoutes, GROUP, Listener, ListenerTls, ListenerTlsMode, NamespaceSelection};

use super::reference::{group_kind, object_ref};
use super::route::check_hostname;
use crate::Fields;
use crate::label_selector::label_selector;

/// Reads `listeners`.
pub(super) fn listeners(fields: &Fields<'_>) -> Vec<Listener> {
    let listeners = fields.list("listeners", listener);
    if listeners.is_empty() {
        fields.refuse("listeners", "at least one listener is required");
    }
    let mut names = BTreeSet::new();
    for (n, listener) in listeners.iter().enumerate() {
        if !names.insert(&listener.name) {
            fields.refuse(&format!("listeners[{n}].name"), format!("listener `{}` is defined twice", listener.name));
        }
    }
    listeners
}

fn listener(fields: &Fields<'_>) -> Listener {
    let listener = Listener {
        name: fields.text("name"),
        hostname: fields.text("hostname"),
        port: fields.integer("port"),
        protocol: fields.text("protocol"),
        tls: fields.read("tls", tls),
        allowed_routes: fields
            .read("allowedRoutes", |allowed| AllowedRoutes {
                namespaces: allowed.read("namespaces", namespaces).unwrap_or_default(),
                kinds: allowed.list("kinds", |kind| group_kind(kind, GROUP, "")),
            })
            .unwrap_or_default(),
    };
    if listener.name.is_empty() {
        fields.reject("name", "the name of a listener is required");
    }
    if listener.protocol.is_empty() {
        fields.reject("protocol", "`protocol` is required");
    }
    check_hostname(fields, "hostname", &listener.hostname);
    let terminates = listener.tls.as_ref().is_some_and(|tls| tls.mode != Some(ListenerTlsMode::Passthrough));
    match listener.protocol.as_str() {
        "HTTP" | "TCP" | "UDP" if listener.tls.is_some() => {
            fields.refuse("tls", format!("`tls` is not supported for protocol {}", listener.protocol));
        }
        "HTTPS" if listener.tls.is_some() && !terminates => {
            fields.refuse("tls.mode", "protocol HTTPS requires mode Terminate; use protocol TLS for Passthrough");
        }
        "TCP" | "UDP" if !listener.hostname.is_empty() => {
            fields.refuse("hostname", format!("`hostname` is not supported for protocol {}", listener.protocol));
        }
        _ => {}
    }
    listener
}

fn tls(fields: &Fields<'_>) -> ListenerTls {
    let modes = [("Terminate", ListenerTlsMode::Terminate), ("Passthrough", ListenerTlsMode::Passthrough)];
    let tls = ListenerTls {
        mode: fields.choice("mode", &modes),
        certificates: fields.list("certificateRefs", |reference| object_ref(reference, "", "Secret")),
        options: fields.text_map("options"),
    };
    if tls.mode != Some(ListenerTlsMode::Passthrough) && tls.certificates.is_empty() && tls.options.is_empty() {
        fields.refuse("certificateRefs", "mode Terminate requires `certificateRefs` or an entry in `options`");
    }
    tls
}

/// Reads which namespaces may attach routes or ListenerSets.
pub(super) fn namespaces(fields: &Fields<'_>) -> NamespaceSelection {
    let words = [("All", 'a'), ("Selector", 'l'), ("Same", 's'), ("None", 'n')];
    let selector = fields.read("selector", label_selector);
    match fields.choice("from", &words) {
        None => NamespaceSelection::Unset,
        Some('a') => NamespaceSelection::All,
        Some('s') => NamespaceSelection::Same,
        Some('n') => NamespaceSelection::None,
        Some(_) => {
            if selector.is_none() {
                fields.refuse("selector", "`from: Selector` requires `selector`");
            }
            NamespaceSelection::Selected(selector)
        }
    }
}
