//! RequestAuthentications (P15).
//!
//! An invalid policy still applies, so that tokens are still verified: an issuer with invalid keys has no keys.

mod jwks;
mod uri;

use sluice_model::{JwtKeys, JwtRule, Object, RequestAuthentication, Text};

use crate::attachment::attachment;
use crate::{Fields, Findings, Item};

use uri::parse_jwks_uri;

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    Some(Object::RequestAuthentication(Box::new(RequestAuthentication {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        attachment: attachment(&fields),
        rules: fields.list("jwtRules", rule),
    })))
}

fn rule(fields: &Fields<'_>) -> JwtRule {
    let timeout = fields.opt_timeout("timeout");
    let rule = JwtRule {
        issuer: fields.text("issuer"),
        audiences: named(fields, "audiences"),
        keys: keys(fields),
        from_headers: fields
            .list("fromHeaders", |header| {
                let name = header.text("name");
                if name.is_empty() {
                    header.refuse("name", "the name of a header is required");
                }
                (name, header.text("prefix"))
            })
            .into_iter()
            .filter(|(name, _)| !name.is_empty())
            .collect(),
        from_params: named(fields, "fromParams"),
        from_cookies: named(fields, "fromCookies"),
        output_payload_to_header: fields.text("outputPayloadToHeader"),
        output_claim_to_headers: fields.list("outputClaimToHeaders", claim_to_header).into_iter().flatten().collect(),
        forward_original_token: fields.bool("forwardOriginalToken"),
        timeout: timeout.filter(|timeout| !timeout.is_zero()),
        space_delimited_claims: fields.texts("spaceDelimitedClaims"),
    };
    if rule.issuer.is_empty() && !fields.has("jwksUri") {
        fields.refuse("issuer", "`issuer` or `jwksUri` is required");
    }
    rule
}

/// Reads a list of strings that must not be empty.
fn named(fields: &Fields<'_>, name: &str) -> Vec<Text> {
    let mut texts = fields.texts(name);
    for (n, _) in texts.iter().enumerate().filter(|(_, text)| text.is_empty()) {
        fields.refuse(&format!("{name}[{n}]"), "the value must not be empty");
    }
    texts.retain(|text| !text.is_empty());
    texts
}

fn claim_to_header(fields: &Fields<'_>) -> Option<(Text, Text)> {
    let (header, claim) = (fields.text("header"), fields.text("claim"));
    let mut good = true;
    if header.is_empty() || !header.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)) {
        fields.refuse("header", "expected a header name of letters, digits, `-` and `_`");
        good = false;
    }
    if claim.is_empty() {
        fields.refuse("claim", "the name of a claim is required");
        good = false;
    }
    good.then_some((header, claim))
}

fn keys(fields: &Fields<'_>) -> JwtKeys {
    let (text, uri) = (fields.text("jwks"), fields.text("jwksUri"));
    let at = if uri.is_empty() {
        JwtKeys::OpenId
    } else {
        match parse_jwks_uri(&uri) {
            Ok(server) => JwtKeys::Uri { uri, server },
            Err(error) => {
                fields.refuse("jwksUri", error.to_string());
                JwtKeys::Unusable
            }
        }
    };
    if text.is_empty() {
        return at;
    }
    if at != JwtKeys::OpenId {
        fields.refuse("jwksUri", "`jwksUri` and `jwks` are mutually exclusive; `jwks` is used");
    }
    match jwks::check(&text) {
        Ok(private) => {
            for n in private {
                fields.warn(
                    "jwks",
                    format!("key {n} is not a public key; it is ignored: only public keys verify tokens"),
                );
            }
            JwtKeys::Inline(text)
        }
        Err(error) => {
            fields.refuse("jwks", error.to_string());
            JwtKeys::Unusable
        }
    }
}

#[cfg(test)]
mod tests;
