//! RequestAuthentications (P15).
//!
//! An invalid policy still applies, so that tokens are still verified. If a part that decides which tokens are valid cannot
//! be read, no token of the rule is valid. If the place of the tokens cannot be read, a request may have an invalid one, and
//! is accepted only with a valid token of another rule.

mod jwks;
mod uri;

use sluice_model::{Attachment, JwtKeys, JwtRule, Object, ObjectMeta, RequestAuthentication, StoredStatus, Text};

use crate::attachment::security_attachment;
use crate::{Fields, Findings, Item};

use uri::parse_jwks_uri;

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let meta = item.meta(findings);
    let mut policy = match Fields::new(item.spec(), "spec", findings) {
        Some(fields) => spec(&fields, &item.key.namespace),
        None => RequestAuthentication { rules: vec![unreadable_rule()], ..RequestAuthentication::default() },
    };
    (policy.namespace, policy.name, policy.created) = (meta.namespace, meta.name, meta.created);
    policy.status = status(item, &policy.attachment);
    Some(Object::RequestAuthentication(Box::new(policy)))
}

fn spec(fields: &Fields<'_>, namespace: &str) -> RequestAuthentication {
    let (attachment, attachment_readable) = security_attachment(fields, namespace);
    let before = fields.findings().error_count();
    let elements = fields.objects("jwtRules");
    let elements_readable = fields.findings().error_count() == before;
    let mut rules: Vec<JwtRule> = elements.iter().map(rule).collect();
    if !elements_readable {
        rules.push(unreadable_rule());
    }
    if !attachment_readable {
        fields.warn("", "what the policy applies to cannot be read: it accepts no token wherever it may apply");
        rules.iter_mut().for_each(|rule| rule.keys = JwtKeys::Unusable);
    }
    RequestAuthentication { attachment, rules, ..RequestAuthentication::default() }
}

/// A rule that cannot be read.
fn unreadable_rule() -> JwtRule {
    JwtRule { keys: JwtKeys::Unusable, location_unreadable: true, ..JwtRule::default() }
}

/// The status of a policy with targets or conditions. That of others decides nothing.
fn status(item: &Item<'_>, attachment: &Attachment) -> StoredStatus {
    let is_read = !attachment.targets.is_empty() || !item.conditions().is_empty();
    if is_read { item.status() } else { StoredStatus::default() }
}

/// A policy in place of one whose parser panics: it denies all that the policy could have denied.
pub(crate) fn most_restrictive(item: &Item<'_>, meta: ObjectMeta, attachment: Attachment) -> Object {
    let status = status(item, &attachment);
    Object::RequestAuthentication(Box::new(RequestAuthentication {
        namespace: meta.namespace,
        name: meta.name,
        created: meta.created,
        attachment,
        rules: vec![unreadable_rule()],
        status,
    }))
}

fn rule(fields: &Fields<'_>) -> JwtRule {
    let findings = fields.findings();
    let timeout = fields.opt_timeout("timeout");
    let before = findings.error_count();
    let issuer = fields.text("issuer");
    let mut rule = JwtRule {
        audiences: named(fields, "audiences"),
        keys: keys(fields, &issuer),
        issuer,
        space_delimited_claims: fields.texts("spaceDelimitedClaims"),
        timeout: timeout.filter(|timeout| !timeout.is_zero()),
        ..JwtRule::default()
    };
    let tokens_readable =
        findings.error_count() == before && (rule.audiences.is_empty() != fields.has_any("audiences"));
    let before = findings.error_count();
    rule.from_headers = fields
        .list("fromHeaders", |header| {
            let name = header.text("name");
            if name.is_empty() {
                header.refuse("name", "the name of a header is required");
            }
            (name, header.text("prefix"))
        })
        .into_iter()
        .filter(|(name, _)| !name.is_empty())
        .collect();
    rule.from_params = named(fields, "fromParams");
    rule.from_cookies = named(fields, "fromCookies");
    // Envoy removes these headers from requests, so that a client cannot set them.
    rule.output_payload_to_header = fields.text("outputPayloadToHeader");
    rule.output_claim_to_headers = fields.list("outputClaimToHeaders", claim_to_header).into_iter().flatten().collect();
    rule.location_unreadable = findings.error_count() != before;
    rule.forward_original_token = fields.bool("forwardOriginalToken");
    if rule.issuer.is_empty() && !fields.has("jwksUri") {
        fields.refuse("issuer", "`issuer` or `jwksUri` is required");
    }
    if !tokens_readable || rule.location_unreadable {
        rule.keys = JwtKeys::Unusable;
        let effect = if rule.location_unreadable {
            "requests without a valid token of another rule are denied"
        } else {
            "its tokens are denied"
        };
        fields.warn("", format!("a part of the rule cannot be read: {effect}"));
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

fn keys(fields: &Fields<'_>, issuer: &str) -> JwtKeys {
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
        if let JwtKeys::Uri { uri, .. } = &at
            && has_tls(issuer)
            && !has_tls(uri)
        {
            fields.warn(
                "jwksUri",
                format!(
                    "`{uri}` is used, but it is not an https URL as the issuer is: keys in plaintext can be replaced \
                     on the network path"
                ),
            );
        }
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

/// Whether the scheme of a URL is `https`.
fn has_tls(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("https"))
}

#[cfg(test)]
mod tests;
