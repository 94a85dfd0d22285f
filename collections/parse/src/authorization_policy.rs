//! AuthorizationPolicies (P16).
//!
//! Unlike other kinds, an invalid policy still applies, and denies all that it may deny: otherwise one invalid value could
//! allow every request. A part that cannot be read is left out of a rule, so that the rule matches more, and an ALLOW rule
//! with such a part is left out. Invalid values are kept as written, and the builder does the same with them.

mod attribute;
mod check;

use serde_json::Value;
use sluice_model::{
    Attachment, AuthorizationCondition, AuthorizationOperation, AuthorizationPolicy, AuthorizationRule,
    AuthorizationSource, Object, ObjectMeta, PolicyAction, PolicyValues, label,
};

use crate::attachment::security_attachment;
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let meta = item.meta(findings);
    let mut policy = match Fields::new(item.spec(), "spec", findings) {
        Some(fields) => spec(&fields, &item.key.namespace),
        None => AuthorizationPolicy {
            action: PolicyAction::Unreadable,
            rules: vec![AuthorizationRule::default()],
            ..AuthorizationPolicy::default()
        },
    };
    policy.dry_run = meta.annotations.get(label::DRY_RUN).is_some_and(|value| check::dry_run(value));
    (policy.namespace, policy.name, policy.created) = (meta.namespace, meta.name, meta.created);
    policy.status = item.status();
    Some(Object::AuthorizationPolicy(Box::new(policy)))
}

fn spec(fields: &Fields<'_>, namespace: &str) -> AuthorizationPolicy {
    let actions = [
        ("ALLOW", PolicyAction::Allow),
        ("DENY", PolicyAction::Deny),
        ("AUDIT", PolicyAction::Audit),
        ("CUSTOM", PolicyAction::Custom),
    ];
    let action = fields.choice("action", &actions).unwrap_or_else(|| {
        if !fields.has("action") {
            return PolicyAction::Allow;
        }
        fields.warn("action", "the action cannot be read: what a rule matches is denied, and nothing is allowed");
        PolicyAction::Unreadable
    });
    let (attachment, attachment_readable) = security_attachment(fields, namespace);
    let provider = fields.object("provider").map(|provider| provider.text("name"));
    let before = fields.findings().error_count();
    let elements = fields.objects("rules");
    let elements_readable = fields.findings().error_count() == before;
    if elements_readable {
        check::action(fields, action, provider.as_ref(), elements.len());
    }
    let mut rules: Vec<AuthorizationRule> =
        elements.iter().filter_map(|fields| applicable_rule(fields, action)).collect();
    if action == PolicyAction::Allow {
        if !attachment_readable {
            fields.warn("", "what the policy applies to cannot be read: it allows nothing wherever it may apply");
            rules.clear();
        }
    } else if !elements_readable {
        // A rule that cannot be read may match anything.
        rules.push(AuthorizationRule::default());
    }
    AuthorizationPolicy {
        attachment,
        action,
        provider: provider.unwrap_or_default(),
        rules,
        ..AuthorizationPolicy::default()
    }
}

/// The rule without what cannot be read; `None` if it would allow more because of that.
fn applicable_rule(fields: &Fields<'_>, action: PolicyAction) -> Option<AuthorizationRule> {
    let before = fields.findings().unreadable_count();
    let mut rule = rule(fields);
    let readable = fields.findings().unreadable_count() == before && !fields.has_unread();
    check::rule(fields, action, &rule);
    if action != PolicyAction::Allow {
        // A condition that is not known may be true.
        rule.when.retain(|when| attribute::of_key(&when.key).is_ok() && !when.values.is_empty());
        return Some(rule);
    }
    if !readable {
        fields.warn("", "a part of the rule cannot be read: the rule allows nothing");
    }
    readable.then_some(rule)
}

/// A policy in place of one whose parser panics: it denies all that the policy could have denied. `None` if that is nothing.
pub(crate) fn most_restrictive(item: &Item<'_>, meta: ObjectMeta, attachment: Attachment) -> Option<Object> {
    let spec = item.spec();
    let text = |path: &str| spec.pointer(path).and_then(Value::as_str);
    let everything = vec![AuthorizationRule::default()];
    let (action, rules) = match text("/action").unwrap_or("ALLOW") {
        "ALLOW" => (PolicyAction::Allow, Vec::new()),
        "DENY" => (PolicyAction::Deny, everything),
        "CUSTOM" => (PolicyAction::Custom, everything),
        "AUDIT" => return None,
        _ => (PolicyAction::Unreadable, everything),
    };
    let dry_run = meta.annotations.get(label::DRY_RUN).is_some_and(|value| check::dry_run(value));
    let provider = text("/provider/name").unwrap_or_default().into();
    Some(Object::AuthorizationPolicy(Box::new(AuthorizationPolicy {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        attachment,
        action,
        provider,
        dry_run,
        rules,
        status: item.status(),
    })))
}

fn rule(fields: &Fields<'_>) -> AuthorizationRule {
    AuthorizationRule {
        from: alternatives(fields, "from", "source", source),
        to: alternatives(fields, "to", "operation", operation),
        when: fields.list("when", |when| AuthorizationCondition {
            key: when.text("key"),
            values: values(when, "values", "notValues"),
        }),
    }
}

/// The alternatives of a rule. If one cannot be read, any source or operation may match it: the list is empty.
fn alternatives<'a, T: Default>(
    fields: &Fields<'a>,
    list: &'a str,
    name: &'a str,
    read: impl Fn(&Fields<'a>) -> T,
) -> Vec<T> {
    let before = fields.findings().error_count();
    let elements = fields.objects(list);
    let mut readable = fields.findings().error_count() == before;
    let alternatives: Vec<T> = elements
        .iter()
        .map(|element| match element.object(name) {
            Some(alternative) => read(&alternative),
            None => {
                readable &= !element.has(name);
                T::default()
            }
        })
        .collect();
    if readable { alternatives } else { Vec::new() }
}

fn source(fields: &Fields<'_>) -> AuthorizationSource {
    let before = fields.findings().error_count();
    let mut source = AuthorizationSource {
        principals: values(fields, "principals", "notPrincipals"),
        request_principals: values(fields, "requestPrincipals", "notRequestPrincipals"),
        namespaces: values(fields, "namespaces", "notNamespaces"),
        service_accounts: values(fields, "serviceAccounts", "notServiceAccounts"),
        trust_domains: values(fields, "trustDomains", "notTrustDomains"),
        ip_blocks: values(fields, "ipBlocks", "notIpBlocks"),
        remote_ip_blocks: values(fields, "remoteIpBlocks", "notRemoteIpBlocks"),
        unreadable: false,
    };
    source.unreadable = fields.findings().error_count() != before || fields.has_unread();
    source
}

fn operation(fields: &Fields<'_>) -> AuthorizationOperation {
    let before = fields.findings().error_count();
    let mut operation = AuthorizationOperation {
        hosts: values(fields, "hosts", "notHosts"),
        ports: values(fields, "ports", "notPorts"),
        methods: values(fields, "methods", "notMethods"),
        paths: values(fields, "paths", "notPaths"),
        unreadable: false,
    };
    operation.unreadable = fields.findings().error_count() != before || fields.has_unread();
    operation
}

/// Values of an attribute. If one of the accepted values cannot be read, any value may be accepted.
fn values(fields: &Fields<'_>, any: &str, none: &str) -> PolicyValues {
    let before = fields.findings().error_count();
    let mut accepted = fields.texts(any);
    if fields.findings().error_count() != before {
        accepted.clear();
    }
    PolicyValues { any: accepted, none: fields.texts(none) }
}

#[cfg(test)]
mod tests;
