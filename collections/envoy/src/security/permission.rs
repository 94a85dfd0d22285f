//! RBAC permissions: the operation of a request (P16).

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::rbac::v3::{Permission, permission::Rule, permission::Set};
use envoy_types::pb::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use envoy_types::pb::envoy::r#type::matcher::v3::{PathMatcher, path_matcher};
use sluice_model::{AuthorizationOperation, PolicyValues, Text, check_path_template, is_path_template};

use super::matchers::{any_of, header, list_with, metadata, text, value};
use super::purpose::Purpose;
use super::{Inexpressible, check_present};
use crate::address::cidr;
use crate::wire::any;

/// An attribute of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attribute<'a> {
    Host,
    Method,
    Path,
    Port,
    Address,
    ServerName,
    /// Metadata of a filter: filter name and key.
    Metadata(&'a str, &'a str),
}

/// A condition on an operation.
pub(super) type Condition<'a> = (Attribute<'a>, &'a PolicyValues);

/// All conditions of an operation, hosts first, then those of the rule's `when`.
pub(super) fn permission(
    operation: Option<&AuthorizationOperation>,
    conditions: &[Condition<'_>],
    purpose: Purpose,
) -> Result<Permission, Inexpressible> {
    let mut all: Vec<Condition<'_>> = Vec::new();
    if let Some(operation) = operation {
        all.extend([
            (Attribute::Host, &operation.hosts),
            (Attribute::Method, &operation.methods),
            (Attribute::Path, &operation.paths),
            (Attribute::Port, &operation.ports),
        ]);
    }
    all.extend(conditions.iter().copied());
    let mut rules = Vec::new();
    for (attribute, values) in all {
        rules.extend(of_values(attribute, &values.any, true, purpose)?);
        rules.extend(of_values(attribute, &values.none, false, purpose)?.map(not));
    }
    if rules.is_empty() {
        rules.push(rule(Rule::Any(true)));
    }
    Ok(rule(Rule::AndRules(Set { rules })))
}

/// The permission that matches one of the values; `None` without valid values, or with an invalid one that may be `accepted`.
fn of_values(
    attribute: Attribute<'_>,
    values: &[Text],
    accepted: bool,
    purpose: Purpose,
) -> Result<Option<Permission>, Inexpressible> {
    if let Attribute::Metadata(filter, key) = attribute {
        let values = values.iter().map(|text| element(text)).collect::<Vec<_>>();
        #[expect(deprecated, reason = "the field proxies of every supported version read")]
        let permission = (!values.is_empty()).then(|| rule(Rule::Metadata(metadata(filter, [key], any_of(values)))));
        return Ok(permission);
    }
    let mut rules = Vec::new();
    for value in values {
        match purpose.tolerate(of_value(attribute, value, purpose))? {
            Some(permission) => rules.push(permission),
            None if accepted => return Ok(None),
            None => {}
        }
    }
    Ok((!rules.is_empty()).then(|| rule(Rule::OrRules(Set { rules }))))
}

fn of_value(attribute: Attribute<'_>, value: &str, purpose: Purpose) -> Result<Permission, Inexpressible> {
    if matches!(attribute, Attribute::Host | Attribute::Method | Attribute::Path) {
        purpose.needs_http()?;
        check_present(value)?;
    }
    Ok(rule(match attribute {
        Attribute::Host => Rule::Header(header(":authority", value, true)),
        Attribute::Method => Rule::Header(header(":method", value, false)),
        Attribute::Path => path(value)?,
        Attribute::Port => {
            let port = value.parse::<u16>().map_err(|_| format!("`{value}` is not a port"))?;
            Rule::DestinationPort(u32::from(port))
        }
        Attribute::Address => {
            Rule::DestinationIp(cidr(value).ok_or_else(|| format!("`{value}` is not an IP address or a CIDR block"))?)
        }
        Attribute::ServerName => Rule::RequestedServerName(text(value)),
        Attribute::Metadata(..) => return Err("the values of this attribute are matched together".into()),
    }))
}

fn path(value: &str) -> Result<Rule, Inexpressible> {
    if !is_path_template(value) {
        return Ok(Rule::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(text(value))) }));
    }
    // Envoy would reject the whole listener.
    check_path_template(value).map_err(|error| error.to_string())?;
    let path_template = value.replace("{*}", "*").replace("{**}", "**");
    Ok(Rule::UriTemplate(TypedExtensionConfig {
        name: "uri-template".to_owned(),
        typed_config: Some(any(&UriTemplateMatchConfig { path_template })),
    }))
}

/// A metadata value; `[v]` matches an element of a list.
fn element(written: &str) -> envoy_types::pb::envoy::r#type::matcher::v3::ValueMatcher {
    if written.starts_with('[') && written.ends_with(']') {
        list_with(value(text(written.trim_matches(['[', ']']))))
    } else {
        value(text(written))
    }
}

fn rule(rule: Rule) -> Permission {
    Permission { rule: Some(rule) }
}

fn not(permission: Permission) -> Permission {
    rule(Rule::NotRule(Box::new(permission)))
}
