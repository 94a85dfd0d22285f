//! Validation of AuthorizationPolicies.

use sluice_model::{AuthorizationRule, PolicyAction, PolicyValues, Text};

use super::attribute::{self, Check, MAX_SERVICE_ACCOUNTS};
use crate::Fields;

/// Attributes that a `CUSTOM` policy cannot match: its provider is called before the peer is authenticated by the filters
/// that set them.
const NOT_FOR_CUSTOM: [&str; 4] =
    ["source.namespace", "source.serviceAccount", "source.trustDomain", "source.principal"];

/// Checks that provider and rules agree with the action.
pub(super) fn action(fields: &Fields<'_>, action: PolicyAction, provider: Option<&Text>, rules: usize) {
    match action {
        PolicyAction::Custom | PolicyAction::Deny if rules == 0 => {
            fields
                .refuse("rules", "a policy without rules matches no request; an empty rule `{}` matches every request");
        }
        PolicyAction::Custom if provider.is_none_or(|name| name.is_empty()) => {
            fields.refuse("provider.name", "the provider of a CUSTOM policy is required");
        }
        _ => {}
    }
    if provider.is_some() && action != PolicyAction::Custom {
        fields.refuse("provider", "a provider is supported only for action CUSTOM");
    }
}

/// Whether the annotation requests a dry run. `admission.rs` checks its value for all kinds.
pub(super) fn dry_run(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// Checks a rule. `fields` is the same rule as JSON, for the field paths.
pub(super) fn rule(fields: &Fields<'_>, action: PolicyAction, rule: &AuthorizationRule) {
    let sources = fields.objects("from");
    let operations = fields.objects("to");
    for (n, from) in sources.iter().enumerate() {
        from.ignore_rest();
        let Some(source) = from.object("source") else {
            from.refuse("source", "`source` is required");
            continue;
        };
        source.ignore_rest();
        if let Some(read) = rule.from.get(n) {
            check_source(&source, action, read);
        }
    }
    for (n, to) in operations.iter().enumerate() {
        to.ignore_rest();
        let Some(operation) = to.object("operation") else {
            to.refuse("operation", "`operation` is required");
            continue;
        };
        operation.ignore_rest();
        if let Some(read) = rule.to.get(n) {
            let lists: [(&str, &str, &PolicyValues, Check); 4] = [
                ("hosts", "notHosts", &read.hosts, attribute::present),
                ("ports", "notPorts", &read.ports, attribute::port),
                ("methods", "notMethods", &read.methods, attribute::present),
                ("paths", "notPaths", &read.paths, attribute::path),
            ];
            if !read.unreadable && lists.iter().all(|(_, _, values, _)| values.is_empty()) {
                operation.refuse("", "at least one field of the operation is required");
            }
            for (any, none, values, check) in lists {
                check_values(&operation, [any, none], values, check);
            }
        }
    }
    for (n, when) in fields.objects("when").iter().enumerate() {
        when.ignore_rest();
        if let Some(read) = rule.when.get(n) {
            condition(when, action, &read.key, &read.values);
        }
    }
    if action == PolicyAction::Deny && needs_http(rule) {
        fields.warn(
            "",
            "the rule has only HTTP attributes, so it denies all traffic on TCP ports; restrict it with `ports`",
        );
    }
}

fn check_source(fields: &Fields<'_>, action: PolicyAction, source: &sluice_model::AuthorizationSource) {
    let identities: [(&str, &str, &PolicyValues, Check); 5] = [
        ("principals", "notPrincipals", &source.principals, attribute::present),
        ("requestPrincipals", "notRequestPrincipals", &source.request_principals, attribute::present),
        ("namespaces", "notNamespaces", &source.namespaces, attribute::present),
        ("serviceAccounts", "notServiceAccounts", &source.service_accounts, attribute::service_account),
        ("trustDomains", "notTrustDomains", &source.trust_domains, attribute::trust_domain),
    ];
    let addresses: [(&str, &str, &PolicyValues, Check); 2] = [
        ("ipBlocks", "notIpBlocks", &source.ip_blocks, attribute::block),
        ("remoteIpBlocks", "notRemoteIpBlocks", &source.remote_ip_blocks, attribute::block),
    ];
    if !source.unreadable && identities.iter().chain(&addresses).all(|(_, _, values, _)| values.is_empty()) {
        fields.refuse("", "at least one field of the source is required");
    }
    let accounts = &source.service_accounts;
    let alone = source.principals.is_empty() && source.namespaces.is_empty();
    if !accounts.is_empty() && !alone {
        fields.refuse("serviceAccounts", "`serviceAccounts` cannot be combined with `namespaces` or `principals`");
    }
    for (name, values) in [("serviceAccounts", &accounts.any), ("notServiceAccounts", &accounts.none)] {
        if values.len() > MAX_SERVICE_ACCOUNTS {
            fields.refuse(name, format!("at most {MAX_SERVICE_ACCOUNTS} values are supported"));
        }
    }
    for (any, none, values, check) in identities.into_iter().chain(addresses) {
        check_values(fields, [any, none], values, check);
    }
    if action == PolicyAction::Custom {
        for (any, none, values, _) in identities {
            for (name, values) in [(any, &values.any), (none, &values.none)] {
                if !values.is_empty() {
                    fields.refuse(name, "a CUSTOM policy does not support attributes of the peer's identity");
                }
            }
        }
    }
}

fn condition(fields: &Fields<'_>, action: PolicyAction, key: &str, values: &PolicyValues) {
    if key.is_empty() {
        fields.refuse("key", "`key` is required");
        return;
    }
    if action == PolicyAction::Custom && (NOT_FOR_CUSTOM.contains(&key) || key.starts_with("request.auth.")) {
        fields.refuse("key", "a CUSTOM policy does not support attributes of the peer's identity");
    }
    match attribute::of_key(key) {
        Err(error) => fields.refuse("key", error.to_string()),
        Ok(_) if values.is_empty() => fields.refuse("values", "`values` or `notValues` is required"),
        Ok(check) => check_values(fields, ["values", "notValues"], values, check),
    }
}

fn check_values(fields: &Fields<'_>, names: [&str; 2], values: &PolicyValues, check: Check) {
    for (name, values) in names.into_iter().zip([&values.any, &values.none]) {
        for (n, reason) in attribute::invalid(values, check) {
            fields.refuse(&format!("{name}[{n}]"), reason);
        }
    }
}

/// Whether the rule names only attributes that a TCP connection does not have.
fn needs_http(rule: &AuthorizationRule) -> bool {
    let of_connections = rule.from.iter().any(|source| {
        let lists = [
            &source.principals,
            &source.namespaces,
            &source.service_accounts,
            &source.ip_blocks,
            &source.remote_ip_blocks,
        ];
        lists.iter().any(|values| !values.is_empty())
    });
    let of_ports = rule.to.iter().any(|operation| !operation.ports.is_empty());
    (!rule.from.is_empty() && rule.to.is_empty() && !of_connections) || (!rule.to.is_empty() && !of_ports)
}
