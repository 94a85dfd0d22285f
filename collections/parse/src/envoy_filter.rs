//! EnvoyFilter (T06). An invalid patch is left out; the other patches apply.

mod value;

use serde_json::Value;
use sluice_model::{
    ApplyTo, Attachment, ClusterMatch, EnvoyFilter, EnvoyPatch, FilterChainMatch, FilterMatch, HTTP_CONNECTION_MANAGER,
    ListenerMatch, Object, ObjectMatch, PatchContext, PatchOperation, PatchValue, RouteActionMatch, RouteMatch,
    RouteTableMatch, Text, VersionMatch, VirtualHostMatch,
};

use crate::admission::check_selector;
use crate::attachment::target_ref;
use crate::{FieldPath, Fields, Findings, Item};

/// Longer expressions for proxy versions are not compiled.
const MAX_VERSION_PATTERN: usize = 1024;

/// Annotation that names the services which patches refer to, so that gateways get their clusters.
const REFERENCED_SERVICES: &str = "envoyfilter.istio.io/referenced-services";

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let selector = fields.object("workloadSelector").map(|selector| {
        let labels = selector.labels("labels");
        check_selector(&selector, "labels", &labels);
        labels
    });
    let targets = fields.list("targetRefs", target_ref);
    let attachment = Attachment { selector: selector.unwrap_or_default(), targets, any_gateway: false };
    let priority = fields.integer("priority");
    let usable = !findings.has_errors();
    let patches = match fields.value("configPatches") {
        None => Vec::new(),
        Some(Value::Array(patches)) => {
            let path = fields.path_of("configPatches");
            let read = patches.iter().enumerate();
            read.map(|(number, patch)| read_separately(patch, path.element(number), findings)).collect()
        }
        Some(_) => {
            fields.reject("configPatches", "expected a list");
            Vec::new()
        }
    };
    drop(fields);
    let referenced = meta.annotations.get(REFERENCED_SERVICES).map_or("", Text::as_str);
    let referenced = referenced.split(',').map(str::trim).filter(|name| !name.is_empty());
    usable.then_some(Object::EnvoyFilter(EnvoyFilter {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        priority,
        attachment,
        patches,
        referenced_services: referenced.map(Text::from).collect(),
    }))
}

/// Reads one patch with its own findings: an error in it does not affect the other patches.
fn read_separately(patch: &Value, path: FieldPath<'_>, findings: &Findings) -> Option<EnvoyPatch> {
    let own = findings.of_part();
    let read = Fields::new(patch, path, &own).and_then(|fields| read_patch(&fields));
    let usable = !own.has_errors();
    findings.add_all(own);
    read.filter(|_| usable)
}

#[derive(Clone, Copy)]
enum Target {
    Invalid,
    /// Envoy's bootstrap, which no proxy requests.
    Bootstrap,
    Part(ApplyTo),
}

const TARGETS: [(&str, Target); 12] = [
    ("INVALID", Target::Invalid),
    ("LISTENER", Target::Part(ApplyTo::Listener)),
    ("FILTER_CHAIN", Target::Part(ApplyTo::FilterChain)),
    ("NETWORK_FILTER", Target::Part(ApplyTo::NetworkFilter)),
    ("HTTP_FILTER", Target::Part(ApplyTo::HttpFilter)),
    ("ROUTE_CONFIGURATION", Target::Part(ApplyTo::RouteConfiguration)),
    ("VIRTUAL_HOST", Target::Part(ApplyTo::VirtualHost)),
    ("HTTP_ROUTE", Target::Part(ApplyTo::HttpRoute)),
    ("CLUSTER", Target::Part(ApplyTo::Cluster)),
    ("EXTENSION_CONFIG", Target::Part(ApplyTo::ExtensionConfig)),
    ("BOOTSTRAP", Target::Bootstrap),
    ("LISTENER_FILTER", Target::Part(ApplyTo::ListenerFilter)),
];

const CONTEXTS: [(&str, PatchContext); 5] = [
    ("ANY", PatchContext::Any),
    ("SIDECAR_INBOUND", PatchContext::SidecarInbound),
    ("SIDECAR_OUTBOUND", PatchContext::SidecarOutbound),
    ("GATEWAY", PatchContext::Gateway),
    ("WAYPOINT", PatchContext::Waypoint),
];

const OPERATIONS: [(&str, Option<PatchOperation>); 9] = [
    ("INVALID", None),
    ("MERGE", Some(PatchOperation::Merge)),
    ("ADD", Some(PatchOperation::Add)),
    ("REMOVE", Some(PatchOperation::Remove)),
    ("INSERT_BEFORE", Some(PatchOperation::InsertBefore)),
    ("INSERT_AFTER", Some(PatchOperation::InsertAfter)),
    ("INSERT_FIRST", Some(PatchOperation::InsertFirst)),
    ("REPLACE", Some(PatchOperation::Replace)),
    ("MERGE_AND_REPLACE_LIST", Some(PatchOperation::MergeAndReplaceList)),
];

/// Filter classes are accepted and have no effect.
const FILTER_CLASSES: [(&str, ()); 4] = [("UNSPECIFIED", ()), ("AUTHN", ()), ("AUTHZ", ()), ("STATS", ())];

fn read_patch(fields: &Fields<'_>) -> Option<EnvoyPatch> {
    let target = fields.choice("applyTo", &TARGETS).unwrap_or(Target::Invalid);
    let patterns = fields.object("match");
    let context = patterns.as_ref().and_then(|m| m.choice("context", &CONTEXTS)).unwrap_or_default();
    if context == PatchContext::Waypoint {
        fields.warn("match.context", "no proxy has this context, as in Istio: waypoints have `SIDECAR_INBOUND`");
    }
    let Some(patch) = fields.object("patch") else {
        fields.reject("patch", "`patch` is required");
        return None;
    };
    let operation = patch.choice("operation", &OPERATIONS).flatten();
    patch.choice("filterClass", &FILTER_CLASSES);
    let written = patch.value("value");
    if matches!(target, Target::Invalid) {
        fields.reject("applyTo", "`applyTo` is required");
    }
    let Some(operation) = operation else {
        patch.reject("operation", "`operation` is required");
        return None;
    };
    if written.is_none() && operation != PatchOperation::Remove {
        patch.reject("value", "`value` is required for every operation except REMOVE");
    }
    let (version, metadata) = match patterns.as_ref().and_then(|m| m.object("proxy")) {
        Some(proxy) => (read_version(&proxy), proxy.labels("metadata")),
        None => Default::default(),
    };
    let Target::Part(apply_to) = target else {
        patterns.iter().for_each(Fields::ignore_rest);
        if let (Some(written), Target::Bootstrap) = (written, target) {
            fields.warn("applyTo", "the patch has no effect: as with Istio, proxies do not request their bootstrap. Variable ISTIO_BOOTSTRAP_OVERRIDE of a proxy adds to it");
            value::read("envoy.config.bootstrap.v3.Bootstrap", written, &patch);
        }
        return None;
    };
    let object = patterns.as_ref().map(|patterns| read_object(patterns, apply_to)).unwrap_or_default();
    let value = match written {
        Some(written) => value::read(apply_to.message_name(), written, &patch)?,
        None => PatchValue::default(),
    };
    let inserts =
        matches!(operation, PatchOperation::InsertBefore | PatchOperation::InsertAfter | PatchOperation::InsertFirst);
    let operation = if inserts && !apply_to.is_ordered() { PatchOperation::Add } else { operation };
    Some(EnvoyPatch { apply_to, context, version, metadata, object, operation, value })
}

fn read_version(proxy: &Fields<'_>) -> VersionMatch {
    let pattern = proxy.text("proxyVersion");
    if pattern.is_empty() {
        return VersionMatch::Any;
    }
    if pattern.len() > MAX_VERSION_PATTERN {
        proxy.warn("proxyVersion", "the expression is too long; it matches no version");
        return VersionMatch::Never;
    }
    match proxy.findings().patterns().compile_version(&pattern) {
        Ok(pattern) => VersionMatch::Matches(pattern),
        Err(error) => {
            proxy.reject("proxyVersion", error.to_string());
            VersionMatch::Never
        }
    }
}

fn read_object(patterns: &Fields<'_>, apply_to: ApplyTo) -> ObjectMatch {
    let listener = patterns.read("listener", |m| read_listener(m, apply_to));
    let table = patterns.read("routeConfiguration", read_table);
    let cluster = patterns.read("cluster", |cluster| ClusterMatch {
        name: cluster.text("name"),
        service: cluster.text("service"),
        subset: cluster.text("subset"),
        port: cluster.integer("portNumber"),
    });
    let waypoint = patterns.object("waypoint").inspect(Fields::ignore_rest).is_some();
    let count = [listener.is_some(), table.is_some(), cluster.is_some(), waypoint].iter().filter(|has| **has).count();
    if count > 1 {
        patterns.reject("", "`listener`, `routeConfiguration`, `cluster` and `waypoint` are mutually exclusive");
    }
    let only = |wanted: &str, fits: bool| {
        if count == 1 && !fits {
            patterns.reject("", format!("expected `{wanted}`: this `applyTo` matches by it"));
        }
    };
    match apply_to {
        ApplyTo::Listener | ApplyTo::FilterChain | ApplyTo::NetworkFilter | ApplyTo::HttpFilter => {
            only("listener", listener.is_some() || waypoint);
        }
        ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute => {
            only("routeConfiguration", table.is_some() || waypoint);
        }
        ApplyTo::Cluster => only("cluster", cluster.is_some()),
        ApplyTo::ExtensionConfig | ApplyTo::ListenerFilter => {}
    }
    listener
        .map(ObjectMatch::Listener)
        .or(table.map(ObjectMatch::RouteTable))
        .or(cluster.map(ObjectMatch::Cluster))
        .unwrap_or_default()
}

fn read_listener(listener: &Fields<'_>, apply_to: ApplyTo) -> ListenerMatch {
    // Accepted, without effect.
    listener.text("portName");
    ListenerMatch {
        port: listener.integer("portNumber"),
        name: listener.text("name"),
        listener_filter: listener.text("listenerFilter"),
        chain: listener.read("filterChain", |chain| FilterChainMatch {
            name: chain.text("name"),
            sni: chain.text("sni"),
            transport_protocol: chain.text("transportProtocol"),
            application_protocols: chain.text("applicationProtocols"),
            destination_port: chain.integer("destinationPort"),
            filter: chain.read("filter", |filter| read_filter(filter, apply_to)),
        }),
    }
}

fn read_filter(filter: &Fields<'_>, apply_to: ApplyTo) -> FilterMatch {
    let name = filter.text("name");
    if matches!(apply_to, ApplyTo::Listener | ApplyTo::FilterChain) {
        filter.warn("", "`filter` has no effect for this `applyTo`");
    }
    if name.is_empty() {
        filter.reject("name", "`name` is required");
    }
    note_deprecated(filter, &name);
    let sub_filter = filter.object("subFilter").map(|sub_filter| {
        let sub_name = sub_filter.text("name");
        if sub_name.is_empty() {
            sub_filter.reject("name", "`name` is required");
        }
        note_deprecated(&sub_filter, &sub_name);
        sub_name
    });
    if sub_filter.is_some() {
        if apply_to != ApplyTo::HttpFilter {
            filter.reject("subFilter", "`subFilter` is supported only for `applyTo: HTTP_FILTER`");
        } else if name.as_str() != HTTP_CONNECTION_MANAGER && name.as_str() != "envoy.http_connection_manager" {
            filter.reject("subFilter", format!("`subFilter` requires the filter `{HTTP_CONNECTION_MANAGER}`"));
        }
    }
    FilterMatch { name, sub_filter }
}

fn note_deprecated(filter: &Fields<'_>, name: &Text) {
    if let Some((_, new)) = DEPRECATED_NAMES.iter().find(|(old, _)| old == &name.as_str()) {
        filter.warn("name", format!("deprecated filter name: use `{new}`"));
    }
}

fn read_table(table: &Fields<'_>) -> RouteTableMatch {
    let actions = [
        ("ANY", RouteActionMatch::Any),
        ("ROUTE", RouteActionMatch::Route),
        ("REDIRECT", RouteActionMatch::Redirect),
        ("DIRECT_RESPONSE", RouteActionMatch::DirectResponse),
    ];
    RouteTableMatch {
        name: table.text("name"),
        port: table.integer("portNumber"),
        port_name: table.text("portName"),
        gateway: table.text("gateway"),
        virtual_host: table.read("vhost", |host| VirtualHostMatch {
            name: host.text("name"),
            domain: host.text("domainName"),
            route: host.read("route", |route| RouteMatch {
                name: route.text("name"),
                action: route.choice("action", &actions).unwrap_or_default(),
            }),
        }),
    }
}

/// Deprecated filter names, each with its current name.
const DEPRECATED_NAMES: [(&str, &str); 27] = [
    ("envoy.buffer", "envoy.filters.http.buffer"),
    ("envoy.cors", "envoy.filters.http.cors"),
    ("envoy.csrf", "envoy.filters.http.csrf"),
    ("envoy.http_dynamo_filter", "envoy.filters.http.dynamo"),
    ("envoy.ext_authz", "envoy.filters.http.ext_authz"),
    ("envoy.fault", "envoy.filters.http.fault"),
    ("envoy.grpc_http1_bridge", "envoy.filters.http.grpc_http1_bridge"),
    ("envoy.grpc_json_transcoder", "envoy.filters.http.grpc_json_transcoder"),
    ("envoy.grpc_web", "envoy.filters.http.grpc_web"),
    ("envoy.gzip", "envoy.filters.http.gzip"),
    ("envoy.health_check", "envoy.filters.http.health_check"),
    ("envoy.ip_tagging", "envoy.filters.http.ip_tagging"),
    ("envoy.lua", "envoy.filters.http.lua"),
    ("envoy.rate_limit", "envoy.filters.http.ratelimit"),
    ("envoy.router", "envoy.filters.http.router"),
    ("envoy.squash", "envoy.filters.http.squash"),
    ("envoy.listener.http_inspector", "envoy.filters.listener.http_inspector"),
    ("envoy.listener.original_dst", "envoy.filters.listener.original_dst"),
    ("envoy.listener.original_src", "envoy.filters.listener.original_src"),
    ("envoy.listener.proxy_protocol", "envoy.filters.listener.proxy_protocol"),
    ("envoy.listener.tls_inspector", "envoy.filters.listener.tls_inspector"),
    ("envoy.client_ssl_auth", "envoy.filters.network.client_ssl_auth"),
    ("envoy.http_connection_manager", HTTP_CONNECTION_MANAGER),
    ("envoy.mongo_proxy", "envoy.filters.network.mongo_proxy"),
    ("envoy.ratelimit", "envoy.filters.network.ratelimit"),
    ("envoy.redis_proxy", "envoy.filters.network.redis_proxy"),
    ("envoy.tcp_proxy", "envoy.filters.network.tcp_proxy"),
];

#[cfg(test)]
mod tests;
