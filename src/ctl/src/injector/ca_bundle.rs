//! The state of the roots by which the API server verifies a webhook.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use x509_parser::pem::Pem;

/// The state of a `caBundle` in a few words.
pub(super) fn state(bundle: &str, now: Timestamp) -> String {
    if bundle.is_empty() {
        return "none".to_owned();
    }
    let Ok(pem) = STANDARD.decode(bundle) else { return "not base64".to_owned() };
    let mut ends = Vec::new();
    for certificate in Pem::iter_from_buffer(&pem) {
        let end = certificate.ok().and_then(|pem| Some(pem.parse_x509().ok()?.validity().not_after.timestamp()));
        let Some(end) = end.and_then(|end| Timestamp::from_second(end).ok()) else {
            return "malformed certificate".to_owned();
        };
        ends.push(end);
    }
    // One root that is valid suffices: an authority is replaced by adding its successor first.
    match ends.into_iter().max() {
        None => "no certificate".to_owned(),
        Some(end) if end < now => format!("expired on {}", date(end)),
        Some(end) => format!("valid until {}", date(end)),
    }
}

fn date(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEM: &str = include_str!("../../tests/recorded/certificate.pem");

    #[test]
    fn bundles_are_judged_by_the_last_end_of_their_certificates() {
        let at = |time: &str, bundle: &str| state(bundle, time.parse().expect("a time"));
        let root = STANDARD.encode(PEM);
        assert_eq!(at("2026-01-01T00:00:00Z", &root), "valid until 2036-01-01");
        assert_eq!(at("2036-01-02T00:00:00Z", &root), "expired on 2036-01-01");
        let malformed = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for (bundle, expected) in [
            (String::new(), "none"),
            ("%".to_owned(), "not base64"),
            (STANDARD.encode("roots"), "no certificate"),
            (STANDARD.encode(malformed), "malformed certificate"),
        ] {
            assert_eq!(at("2026-01-01T00:00:00Z", &bundle), expected);
        }
    }
}
