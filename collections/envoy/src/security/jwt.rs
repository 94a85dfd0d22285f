//! The filter that checks tokens (P15).

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
use crate::filter::http_filter;
use crate::wire::{any, duration};

/// Time to fetch keys unless configured.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a proxy keeps keys that it fetches itself.
const CACHE: Duration = Duration::from_secs(300);
/// Claims that are lists separated by spaces, whatever is configured.
const SPACE_DELIMITED: [&str; 2] = ["permission", "scope"];

/// A key that nobody has the other half of: no token is signed by it.
const NO_KEYS: &str = r#"{
  "keys": [
    {
      "kty": "RSA",
      "e": "AQAB",
      "n": "0xObjM0UvS_oaazjpEYlAbwctEJ4L8pH3OuTb7qth7gUwqet-EzQB4dgFdvSdMgrLnSncQGRjpEYz3F3viIbH-3EN3TxSlPNviHxeOdyiBVfumN8dMxbLvVJUpfNOnvmMxJcl-8NNjAwcOjk4otSALaYgYYyOPyvKtgVdrQr-FoubWX4yrjxW-MJ2-7OBeepUUNOsVwGV23YX03sVkkyvY3otRflkBcY3_HKpBxJl9wk2GyOShN4_PNUF9-vwfnvOXMbCDX-w4PTef4geeb_GiT40YCKHTKMSPVanGRn5GExIWmki-mmqh94-mPTJyBR74ShspL3BxPZitDL574T1w"
    }
  ]
}"#;

/// Where a proxy has the keys of an issuer from.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum KeySource {
    /// From here: the text of the set.
    Inline(Text),
    /// From their address, by that cluster.
    Remote {
        /// The address.
        uri: Text,
        /// The cluster.
        cluster: Text,
    },
    /// There are none: every token of the issuer is refused.
    #[default]
    None,
}

/// The filter; `None` without issuers. A request without a token passes, one with a token that is not valid does not.
pub(super) fn build_jwt(tokens: &[(&JwtRule, KeySource)], clear_route_cache: bool) -> Option<HttpFilter> {
    let mut tokens: Vec<&(&JwtRule, KeySource)> = tokens.iter().collect();
    tokens.sort_by(|a, b| a.0.issuer.cmp(&b.0.issuer));
    let named = tokens.iter().enumerate().map(|(n, (rule, keys))| {
        let provider = JwtProvider { clear_route_cache, ..provider(rule, keys) };
        (format!("origins-{n}"), provider)
    });
    let providers: HashMap<String, JwtProvider> = named.collect();
    let each: Vec<JwtRequirement> =
        (0..tokens.len()).map(|n| requirement(RequiresType::ProviderName(format!("origins-{n}")))).collect();
    let requires = requirements(each)?;
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

/// Some token is valid, or every one that is there is: issuers may share a place for tokens.
fn requirements(each: Vec<JwtRequirement>) -> Option<JwtRequirement> {
    let or_missing = |provider: &JwtRequirement| {
        any_of(vec![provider.clone(), requirement(RequiresType::AllowMissing(Empty::default()))])
    };
    let mut every: Vec<JwtRequirement> = each.iter().map(or_missing).collect();
    if every.len() <= 1 {
        return every.pop();
    }
    let all = requirement(RequiresType::RequiresAll(JwtRequirementAndList { requirements: every }));
    Some(any_of(each.into_iter().chain([all]).collect()))
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
                timeout: Some(duration(rule.timeout.unwrap_or(TIMEOUT))),
                http_upstream_type: Some(HttpUpstreamType::Cluster(cluster.to_string())),
            }),
            cache_duration: Some(duration(CACHE)),
            ..RemoteJwks::default()
        }),
    }
}
