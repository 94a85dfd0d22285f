//! The JWT filter (P15).

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{
    DataSource, HttpUri, data_source::Specifier, http_uri::HttpUpstreamType,
};
use envoy_types::pb::envoy::config::route::v3::{RouteMatch, route_match::PathSpecifier};
use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3::{
    JwtAuthentication, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement, JwtRequirementAndList,
    JwtRequirementOrList, RemoteJwks, RequirementRule,
    jwt_provider::{JwksSourceSpecifier, NormalizePayload},
    jwt_requirement::RequiresType,
    requirement_rule::RequirementType,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::google::protobuf::Empty;
use sluice_model::{JwtRule, Text};

use super::matchers::{JWT_FILTER, JWT_PAYLOAD};
use crate::filter_config::http_filter;
use crate::wire::{any, duration};

/// Default timeout of a JWKS fetch.
const DEFAULT_FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Cache duration of keys that the proxy fetches.
const CACHE_DURATION: Duration = Duration::from_secs(300);
/// Claims that are always space-delimited lists.
const SPACE_DELIMITED: [&str; 2] = ["permission", "scope"];

/// A key set whose private key is unknown, so that no token is valid.
const NO_KEYS: &str = r#"{
  "keys": [
    {
      "kty": "RSA",
      "e": "AQAB",
      "n": "0xObjM0UvS_oaazjpEYlAbwctEJ4L8pH3OuTb7qth7gUwqet-EzQB4dgFdvSdMgrLnSncQGRjpEYz3F3viIbH-3EN3TxSlPNviHxeOdyiBVfumN8dMxbLvVJUpfNOnvmMxJcl-8NNjAwcOjk4otSALaYgYYyOPyvKtgVdrQr-FoubWX4yrjxW-MJ2-7OBeepUUNOsVwGV23YX03sVkkyvY3otRflkBcY3_HKpBxJl9wk2GyOShN4_PNUF9-vwfnvOXMbCDX-w4PTef4geeb_GiT40YCKHTKMSPVanGRn5GExIWmki-mmqh94-mPTJyBR74ShspL3BxPZitDL574T1w"
    }
  ]
}"#;

/// Source of the keys of an issuer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum KeySource {
    /// The key set as text.
    Inline(Text),
    /// The proxy fetches the keys from a URI.
    Remote {
        /// The URI.
        uri: Text,
        /// The cluster of the server.
        cluster: Text,
    },
    /// No keys: every token of the issuer is rejected.
    #[default]
    None,
}

/// Builds the filter; `None` without issuers. A request without a token is accepted, one with an invalid token is rejected.
pub(super) fn build_jwt(tokens: &[(&JwtRule, KeySource)], clear_route_cache: bool) -> Option<HttpFilter> {
    let mut tokens: Vec<&(&JwtRule, KeySource)> = tokens.iter().collect();
    tokens.sort_by(|a, b| a.0.issuer.cmp(&b.0.issuer));
    let named = tokens.iter().enumerate().map(|(n, (rule, keys))| {
        let provider = JwtProvider { clear_route_cache, ..provider(rule, keys) };
        (format!("origins-{n}"), provider)
    });
    let providers: HashMap<String, JwtProvider> = named.collect();
    let each = tokens.iter().enumerate().map(|(n, (rule, _))| {
        (requirement(RequiresType::ProviderName(format!("origins-{n}"))), !rule.location_unreadable)
    });
    let requires = requirements(each.collect())?;
    Some(http_filter(
        JWT_FILTER,
        any(&JwtAuthentication {
            providers,
            rules: vec![RequirementRule {
                r#match: Some(RouteMatch {
                    path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
                    ..RouteMatch::default()
                }),
                requirement_type: Some(RequirementType::Requires(requires)),
            }],
            bypass_cors_preflight: true,
            ..JwtAuthentication::default()
        }),
    ))
}

/// The requirement: one token is valid, or no token is present. Issuers may share a token location. Each issuer has a flag
/// whether its token may be missing: it cannot be known to be missing in an unknown location.
fn requirements(each: Vec<(JwtRequirement, bool)>) -> Option<JwtRequirement> {
    let or_missing = |(provider, optional): &(JwtRequirement, bool)| {
        let missing = requirement(RequiresType::AllowMissing(Empty::default()));
        if *optional { any_of(vec![provider.clone(), missing]) } else { provider.clone() }
    };
    let mut every: Vec<JwtRequirement> = each.iter().map(or_missing).collect();
    if every.len() <= 1 {
        return every.pop();
    }
    let all = requirement(RequiresType::RequiresAll(JwtRequirementAndList { requirements: every }));
    Some(any_of(each.into_iter().map(|(provider, _)| provider).chain([all]).collect()))
}

fn requirement(requires: RequiresType) -> JwtRequirement {
    JwtRequirement { requires_type: Some(requires) }
}

fn any_of(requirements: Vec<JwtRequirement>) -> JwtRequirement {
    requirement(RequiresType::RequiresAny(JwtRequirementOrList { requirements }))
}

fn provider(rule: &JwtRule, keys: &KeySource) -> JwtProvider {
    let texts = |texts: &[Text]| texts.iter().map(Text::to_string).collect();
    let header = |(name, prefix): &(Text, Text)| JwtHeader { name: name.to_string(), value_prefix: prefix.to_string() };
    let claim = |(header, claim): &(Text, Text)| JwtClaimToHeader {
        header_name: header.to_string(),
        claim_name: claim.to_string(),
        ..JwtClaimToHeader::default()
    };
    JwtProvider {
        issuer: rule.issuer.to_string(),
        audiences: texts(&rule.audiences),
        forward: rule.forward_original_token,
        from_headers: rule.from_headers.iter().map(header).collect(),
        from_params: texts(&rule.from_params),
        from_cookies: texts(&rule.from_cookies),
        forward_payload_header: rule.output_payload_to_header.to_string(),
        payload_in_metadata: JWT_PAYLOAD.to_owned(),
        normalize_payload_in_metadata: Some(NormalizePayload { space_delimited_claims: space_delimited(rule) }),
        claim_to_headers: rule.output_claim_to_headers.iter().map(claim).collect(),
        jwks_source_specifier: Some(source(rule, keys)),
        ..JwtProvider::default()
    }
}

fn space_delimited(rule: &JwtRule) -> Vec<String> {
    let own = rule.space_delimited_claims.iter().map(Text::as_str);
    let all: BTreeSet<&str> = own.chain(SPACE_DELIMITED).collect();
    all.into_iter().map(str::to_owned).collect()
}

fn source(rule: &JwtRule, keys: &KeySource) -> JwksSourceSpecifier {
    let inline = |text: &str| {
        let specifier = Some(Specifier::InlineString(text.to_owned()));
        JwksSourceSpecifier::LocalJwks(DataSource { specifier, ..DataSource::default() })
    };
    match keys {
        KeySource::Inline(text) => inline(text),
        KeySource::None => inline(NO_KEYS),
        KeySource::Remote { uri, cluster } => JwksSourceSpecifier::RemoteJwks(RemoteJwks {
            http_uri: Some(HttpUri {
                uri: uri.to_string(),
                timeout: Some(duration(rule.timeout.unwrap_or(DEFAULT_FETCH_TIMEOUT))),
                http_upstream_type: Some(HttpUpstreamType::Cluster(cluster.to_string())),
            }),
            cache_duration: Some(duration(CACHE_DURATION)),
            ..RemoteJwks::default()
        }),
    }
}
