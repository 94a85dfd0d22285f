//! Names of endpoints that are resources of their own (LEDS). The endpoints of a cluster in a locality are a collection.

use std::fmt::Write;

/// How the names of all such endpoints begin.
const PREFIX: &str = "xdstp:///envoy.config.endpoint.v3.LbEndpoint/";

/// What follows the name of a collection in a subscription to all of its endpoints.
pub const ALL: &str = "/*";

/// The name of the collection of the endpoints of a cluster that these parts identify. Its endpoints are named `COLLECTION/NAME`.
#[must_use]
pub fn collection_name(cluster: &str, parts: &[&str]) -> String {
    let parts: Vec<String> = parts.iter().map(|part| escaped(part)).collect();
    format!("{PREFIX}{}/{}", escaped(cluster), parts.join(","))
}

/// The name of an endpoint of a collection.
#[must_use]
pub fn endpoint_name(collection: &str, endpoint: &str) -> String {
    format!("{collection}/{}", escaped(endpoint))
}

/// How the names of all collections and endpoints of a cluster begin.
#[must_use]
pub fn cluster_prefix(cluster: &str) -> String {
    format!("{PREFIX}{}/", escaped(cluster))
}

/// The host of the outbound cluster that an endpoint or collection is of, if it is of one.
#[must_use]
pub fn outbound_host(name: &str) -> Option<&str> {
    let (cluster, _) = name.strip_prefix(PREFIX)?.split_once('/')?;
    cluster.strip_prefix("outbound|")?.rsplit('|').next()
}

/// A part of a name without characters that Envoy escapes in URLs or that separate parts. Envoy compares names after it has decoded and
/// encoded them, so a name must not change by this.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'|' => out.push(char::from(byte)),
            // Writing to a string does not fail.
            other => drop(write!(out, "~{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_characters_with_a_meaning_in_urls() {
        let collection = collection_name("outbound|80||a.b", &["eu/1", "a,b", "", "0"]);
        assert_eq!(collection, "xdstp:///envoy.config.endpoint.v3.LbEndpoint/outbound|80||a.b/eu~2F1,a~2Cb,,0");
        assert_eq!(endpoint_name(&collection, "[::1]:80"), format!("{collection}/~5B~3A~3A1~5D~3A80"));
        assert!(collection.starts_with(&cluster_prefix("outbound|80||a.b")));
        assert_eq!(outbound_host(&collection), Some("a.b"));
        assert_eq!(outbound_host("xdstp:///envoy.config.endpoint.v3.LbEndpoint/inbound|80||/,,,0"), None);
    }
}
