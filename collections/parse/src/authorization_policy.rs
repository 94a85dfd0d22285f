//! AuthorizationPolicies (P16).
//!
//! Unlike other kinds, an invalid policy still applies: otherwise one invalid value could allow every request. Values are
//! kept as written, and the builder leaves out or widens the rule that has an invalid one.

mod attribute;
mod check;

use sluice_model::{
    AuthorizationCondition, AuthorizationOperation, AuthorizationPolicy, AuthorizationRule, AuthorizationSource,
    Object, PolicyAction, PolicyValues, label,
};

use crate::attachment::attachment;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let actions = [
        ("ALLOW", PolicyAction::Allow),
        ("DENY", PolicyAction::Deny),
        ("AUDIT", PolicyAction::Audit),
        ("CUSTOM", PolicyAction::Custom),
    ];
    let action = fields.choice("action", &actions);
    if action.is_none() && fields.has("action") {
        fields.ignore_rest();
        return None;
    }
    let action = action.unwrap_or_default();
    let attachment = attachment(&fields);
    let provider = fields.object("provider").map(|provider| provider.text("name"));
    let rules = fields.objects("rules");
    check::action(&fields, action, provider.as_ref(), rules.len());
    let rules = rules.iter().filter_map(|fields| {
        let before = findings.error_count();
        let rule = rule(fields);
        let readable = findings.error_count() == before;
        check::rule(fields, action, &rule);
        // A rule with an unreadable part would match more requests. It must not allow more.
        (readable || action != PolicyAction::Allow).then_some(rule)
    });
    let rules = rules.collect();
    let dry_run = meta.annotations.get(label::DRY_RUN).is_some_and(|value| check::dry_run(value));
    drop(fields);
    Some(Object::AuthorizationPolicy(Box::new(AuthorizationPolicy {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        attachment,
        action,
        provider: provider.unwrap_or_default(),
        dry_run,
        rules,
    })))
}

fn rule(fields: &Fields<'_>) -> AuthorizationRule {
    AuthorizationRule {
        from: fields.list("from", |from| from.read("source", source).unwrap_or_default()),
        to: fields.list("to", |to| to.read("operation", operation).unwrap_or_default()),
        when: fields.list("when", |when| AuthorizationCondition {
            key: when.text("key"),
            values: PolicyValues { any: when.texts("values"), none: when.texts("notValues") },
        }),
    }
}

fn source(fields: &Fields<'_>) -> AuthorizationSource {
    AuthorizationSource {
        principals: values(fields, "principals", "notPrincipals"),
        request_principals: values(fields, "requestPrincipals", "notRequestPrincipals"),
        namespaces: values(fields, "namespaces", "notNamespaces"),
        service_accounts: values(fields, "serviceAccounts", "notServiceAccounts"),
        trust_domains: values(fields, "trustDomains", "notTrustDomains"),
        ip_blocks: values(fields, "ipBlocks", "notIpBlocks"),
        remote_ip_blocks: values(fields, "remoteIpBlocks", "notRemoteIpBlocks"),
    }
}

fn operation(fields: &Fields<'_>) -> AuthorizationOperation {
    AuthorizationOperation {
        hosts: values(fields, "hosts", "notHosts"),
        ports: values(fields, "ports", "notPorts"),
        methods: values(fields, "methods", "notMethods"),
        paths: values(fields, "paths", "notPaths"),
    }
}

fn values(fields: &Fields<'_>, any: &str, none: &str) -> PolicyValues {
    PolicyValues { any: fields.texts(any), none: fields.texts(none) }
}

#[cfg(test)]
mod tests;
