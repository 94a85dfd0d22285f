//! Hash policies of consistent hashing.

use envoy_types::pb::envoy::config::route::v3::route_action::HashPolicy;
use envoy_types::pb::envoy::config::route::v3::route_action::hash_policy::{
    ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
};
use sluice_model::{ConsistentHash, HashKey};

use crate::wire::duration;

/// The hash policy of a route to a destination with consistent hashing; `None` without a hash key.
#[must_use]
pub(crate) fn build_hash_policy(hash: &ConsistentHash) -> Option<HashPolicy> {
    let specifier = match hash.key.as_ref()? {
        HashKey::Header(name) => PolicySpecifier::Header(Header { header_name: name.to_string(), ..Header::default() }),
        HashKey::Cookie { name, path, ttl, attributes } => PolicySpecifier::Cookie(Cookie {
            name: name.to_string(),
            path: path.to_string(),
            ttl: ttl.map(duration),
            attributes: attributes
                .iter()
                .map(|(name, value)| CookieAttribute { name: name.to_string(), value: value.to_string() })
                .collect(),
        }),
        HashKey::SourceIp(source_ip) => {
            PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: *source_ip })
        }
        HashKey::QueryParameter(name) => PolicySpecifier::QueryParameter(QueryParameter { name: name.to_string() }),
    };
    Some(HashPolicy { policy_specifier: Some(specifier), ..HashPolicy::default() })
}
