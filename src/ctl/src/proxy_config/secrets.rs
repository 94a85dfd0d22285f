//! The table of certificates.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use x509_parser::certificate::X509Certificate;
use x509_parser::pem::Pem;

use super::dump::ConfigDump;

pub(super) const TITLES: [&str; 7] =
    ["RESOURCE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"];

/// Cells of all certificates of a dump: of a chain, the first, and of roots, all.
pub(super) fn rows(dump: &ConfigDump, prefix: &str, now: Timestamp) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (state, entry) in dump.secrets() {
        let secret = &entry["secret"];
        let name = secret["name"].as_str().or_else(|| entry["name"].as_str()).unwrap_or_default();
        let chain = content(&secret["tlsCertificate"]["certificateChain"]);
        let (kind, pem, limit) = match (chain, roots(secret)) {
            (Some(pem), _) => ("Cert Chain", pem, 1),
            (None, Some(pem)) => ("CA", pem, usize::MAX),
            (None, None) => continue,
        };
        for certificate in Pem::iter_from_buffer(&pem).take(limit) {
            let mut row = vec![format!("{prefix}{name}"), kind.to_owned(), state.to_owned()];
            row.extend(certificate.ok().and_then(|pem| cells(&pem, now)).unwrap_or_else(unreadable));
            rows.push(row);
        }
    }
    rows
}

/// The roots in a Secret, as PEM.
pub(super) fn roots(secret: &Value) -> Option<Vec<u8>> {
    content(&secret["validationContext"]["trustedCa"])
        .or_else(|| content(&secret["combinedValidationContext"]["defaultValidationContext"]["trustedCa"]))
}

/// The bytes of a data source.
fn content(source: &Value) -> Option<Vec<u8>> {
    match source["inlineBytes"].as_str() {
        Some(text) => STANDARD.decode(text).ok(),
        None => source["inlineString"].as_str().map(|text| text.as_bytes().to_vec()),
    }
}

fn cells(pem: &Pem, now: Timestamp) -> Option<[String; 4]> {
    let certificate = pem.parse_x509().ok()?;
    let validity = certificate.validity();
    let time = |seconds: i64| Timestamp::from_second(seconds).ok();
    let (from, until) = (time(validity.not_before.timestamp())?, time(validity.not_after.timestamp())?);
    let (serial, end) = serial_and_end(&certificate)?;
    Some([(from <= now && now <= until).to_string(), serial, end, from.to_string()])
}

/// The serial number of a certificate, and the end of its validity.
pub(super) fn serial_and_end(certificate: &X509Certificate<'_>) -> Option<(String, String)> {
    let serial: String = certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect();
    let end = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
    Some((serial.trim_start_matches('0').to_owned(), end.to_string()))
}

fn unreadable() -> [String; 4] {
    ["false", "-", "-", "-"].map(str::to_owned)
}
