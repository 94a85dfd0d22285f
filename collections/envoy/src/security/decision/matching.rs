//! Evaluates RBAC rules for a request.

use std::collections::BTreeSet;
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TypedExtensionConfig};
use envoy_types::pb::envoy::config::rbac::v3::permission::Rule;
use envoy_types::pb::envoy::config::rbac::v3::principal::Identifier;
use envoy_types::pb::envoy::config::rbac::v3::{Permission, Policy, Principal};
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use envoy_types::pb::envoy::r#type::matcher::v3::metadata_matcher::path_segment::Segment;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::value_matcher::MatchPattern as ValuePattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    MetadataMatcher, StringMatcher, ValueMatcher, list_matcher, path_matcher,
};
use ipnet::IpNet;
use prost::Message;
use regex::Regex;
use sluice_model::StringMatch;

use super::PolicyRequest;
use crate::security::matchers::{JWT_FILTER, JWT_PAYLOAD};

const HOST: &str = "host";
const SOURCE_IP: &str = "source IP";
const REMOTE_IP: &str = "remote IP";
const DESTINATION_IP: &str = "destination IP";
const PORT: &str = "port";
const SERVER_NAME: &str = "server name";
/// What only a running proxy can evaluate.
const OTHER: &str = "an attribute that is not evaluated here";

/// Whether a rule matches.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Truth {
    No,
    Yes,
    /// It depends on these attributes, which the request does not state.
    Unknown(BTreeSet<&'static str>),
}

impl Truth {
    fn unknown(attribute: &'static str) -> Self {
        Self::Unknown(BTreeSet::from([attribute]))
    }

    /// The attributes that it depends on, none if it is true; `None` if it is false.
    pub(super) fn matches(self) -> Option<BTreeSet<&'static str>> {
        match self {
            Self::No => None,
            Self::Yes => Some(BTreeSet::new()),
            Self::Unknown(attributes) => Some(attributes),
        }
    }

    fn not(self) -> Self {
        match self {
            Self::No => Self::Yes,
            Self::Yes => Self::No,
            unknown @ Self::Unknown(_) => unknown,
        }
    }

    fn all(truths: impl IntoIterator<Item = Self>) -> Self {
        let mut open = BTreeSet::new();
        for truth in truths {
            match truth {
                Self::No => return Self::No,
                Self::Yes => {}
                Self::Unknown(attributes) => open.extend(attributes),
            }
        }
        if open.is_empty() { Self::Yes } else { Self::Unknown(open) }
    }

    fn any(truths: impl IntoIterator<Item = Self>) -> Self {
        Self::all(truths.into_iter().map(Self::not)).not()
    }
}

impl From<bool> for Truth {
    fn from(truth: bool) -> Self {
        if truth { Self::Yes } else { Self::No }
    }
}

/// The rules for one request.
#[derive(Clone, Copy)]
pub(super) struct Evaluation<'r> {
    pub(super) request: &'r PolicyRequest,
}

impl Evaluation<'_> {
    pub(super) fn policy(self, policy: &Policy) -> Truth {
        let permissions = Truth::any(policy.permissions.iter().map(|it| self.permission(it)));
        let principals = Truth::any(policy.principals.iter().map(|it| self.principal(it)));
        Truth::all([permissions, principals])
    }

    fn permission(self, permission: &Permission) -> Truth {
        let request = self.request;
        match &permission.rule {
            Some(Rule::AndRules(set)) => Truth::all(set.rules.iter().map(|it| self.permission(it))),
            Some(Rule::OrRules(set)) => Truth::any(set.rules.iter().map(|it| self.permission(it))),
            Some(Rule::NotRule(rule)) => self.permission(rule).not(),
            Some(Rule::Any(any)) => (*any).into(),
            Some(Rule::Header(header)) => self.header(header),
            Some(Rule::UrlPath(matcher)) => match &matcher.rule {
                Some(path_matcher::Rule::Path(text)) => self.path().map_or(Truth::No, |path| matches(text, path)),
                None => Truth::No,
            },
            Some(Rule::UriTemplate(template)) => self.template(template),
            Some(Rule::DestinationIp(range)) => is_in(range, request.destination_ip, DESTINATION_IP),
            Some(Rule::DestinationPort(port)) => {
                request.port.map_or(Truth::unknown(PORT), |it| (u32::from(it) == *port).into())
            }
            Some(Rule::RequestedServerName(text)) => {
                request.server_name.as_ref().map_or(Truth::unknown(SERVER_NAME), |name| matches(text, name))
            }
            #[expect(deprecated, reason = "the field proxies of every supported version read")]
            Some(Rule::Metadata(matcher)) => self.metadata(matcher),
            _ => Truth::unknown(OTHER),
        }
    }

    fn principal(self, principal: &Principal) -> Truth {
        let request = self.request;
        match &principal.identifier {
            Some(Identifier::AndIds(set)) => Truth::all(set.ids.iter().map(|it| self.principal(it))),
            Some(Identifier::OrIds(set)) => Truth::any(set.ids.iter().map(|it| self.principal(it))),
            Some(Identifier::NotId(id)) => self.principal(id).not(),
            Some(Identifier::Any(any)) => (*any).into(),
            Some(Identifier::Authenticated(authenticated)) => match (&authenticated.principal_name, &request.principal)
            {
                (_, None) => Truth::No,
                (None, Some(_)) => Truth::Yes,
                (Some(text), Some(name)) => matches(text, name),
            },
            Some(Identifier::DirectRemoteIp(range)) => is_in(range, request.source_ip, SOURCE_IP),
            Some(Identifier::RemoteIp(range)) => is_in(range, request.remote_ip, REMOTE_IP),
            Some(Identifier::Header(header)) => self.header(header),
            #[expect(deprecated, reason = "the field proxies of every supported version read")]
            Some(Identifier::Metadata(matcher)) => self.metadata(matcher),
            _ => Truth::unknown(OTHER),
        }
    }

    fn header(self, matcher: &HeaderMatcher) -> Truth {
        let Some(http) = &self.request.http else { return Truth::No };
        let value = match matcher.name.as_str() {
            ":authority" => match &http.host {
                Some(host) => Some(host),
                None => return Truth::unknown(HOST),
            },
            ":method" => Some(&http.method),
            name => http.headers.get(&name.to_ascii_lowercase()),
        };
        match (&matcher.header_match_specifier, value) {
            (Some(HeaderMatchSpecifier::PresentMatch(present)), value) => (value.is_some() == *present).into(),
            (Some(HeaderMatchSpecifier::StringMatch(text)), Some(value)) => matches(text, value),
            (_, None) => Truth::No,
            _ => Truth::unknown(OTHER),
        }
    }

    /// The path without query and fragment.
    fn path(&self) -> Option<&str> {
        let http = self.request.http.as_ref()?;
        Some(http.path.split(['?', '#']).next().unwrap_or_default())
    }

    fn template(self, config: &TypedExtensionConfig) -> Truth {
        let Some(path) = self.path() else { return Truth::No };
        let config = config.typed_config.as_ref().map(|any| UriTemplateMatchConfig::decode(any.value.as_slice()));
        let Some(Ok(UriTemplateMatchConfig { path_template })) = config else { return Truth::unknown(OTHER) };
        let segments = path_template.split('/').map(|segment| match segment {
            "*" => "[^/]+".to_owned(),
            "**" => ".*".to_owned(),
            literal => StringMatch::escape_regex(literal),
        });
        whole(&segments.collect::<Vec<_>>().join("/"), path)
    }

    /// Claims of a token. Metadata of other filters is not known.
    fn metadata(self, matcher: &MetadataMatcher) -> Truth {
        let keys = matcher.path.iter().map(|segment| match &segment.segment {
            Some(Segment::Key(key)) => key.as_str(),
            None => "",
        });
        let path: Vec<&str> = keys.collect();
        let (JWT_FILTER, [JWT_PAYLOAD, claim @ ..]) = (matcher.filter.as_str(), &path[..]) else {
            return Truth::unknown(OTHER);
        };
        let claim: Vec<String> = claim.iter().map(|key| (*key).to_owned()).collect();
        let values = self.request.claims.get(&claim).map_or(&[][..], Vec::as_slice);
        matcher.value.as_ref().map_or(Truth::No, |matcher| value(matcher, values))
    }
}

/// Whether a claim matches. One value is a text, and a list of one text.
fn value(matcher: &ValueMatcher, values: &[String]) -> Truth {
    match &matcher.match_pattern {
        Some(ValuePattern::StringMatch(text)) => match values {
            [only] => matches(text, only),
            _ => Truth::No,
        },
        Some(ValuePattern::ListMatch(list)) => match &list.match_pattern {
            Some(list_matcher::MatchPattern::OneOf(of)) => {
                Truth::any(values.iter().map(|it| value(of, std::slice::from_ref(it))))
            }
            _ => Truth::unknown(OTHER),
        },
        Some(ValuePattern::OrMatch(or)) => Truth::any(or.value_matchers.iter().map(|it| value(it, values))),
        _ => Truth::unknown(OTHER),
    }
}

fn matches(matcher: &StringMatcher, text: &str) -> Truth {
    let fold = |text: &str| if matcher.ignore_case { text.to_lowercase() } else { text.to_owned() };
    match &matcher.match_pattern {
        Some(MatchPattern::Exact(exact)) => (fold(exact) == fold(text)).into(),
        Some(MatchPattern::Prefix(prefix)) => fold(text).starts_with(&fold(prefix)).into(),
        Some(MatchPattern::Suffix(suffix)) => fold(text).ends_with(&fold(suffix)).into(),
        Some(MatchPattern::Contains(part)) => fold(text).contains(&fold(part)).into(),
        Some(MatchPattern::SafeRegex(regex)) => whole(&regex.regex, text),
        _ => Truth::unknown(OTHER),
    }
}

/// Whether an expression matches the whole text.
fn whole(expression: &str, text: &str) -> Truth {
    match Regex::new(&format!("^(?:{expression})$")) {
        Ok(regex) => regex.is_match(text).into(),
        Err(_) => Truth::unknown(OTHER),
    }
}

fn is_in(range: &CidrRange, address: Option<IpAddr>, attribute: &'static str) -> Truth {
    let Some(address) = address else { return Truth::unknown(attribute) };
    let length = range.prefix_len.as_ref().map_or(0, |length| length.value);
    let network =
        range.address_prefix.parse().ok().and_then(|prefix| IpNet::new(prefix, u8::try_from(length).ok()?).ok());
    network.map_or(Truth::unknown(OTHER), |network| network.contains(&address).into())
}
