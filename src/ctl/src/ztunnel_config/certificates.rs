//! Certificates of ztunnel.

use jiff::Timestamp;
use serde_json::Value;

use super::dump::ZtunnelDump;
use crate::answer_output::{list, text};

pub(super) const TITLES: [&str; 7] =
    ["CERTIFICATE NAME", "TYPE", "STATUS", "VALID CERT", "SERIAL NUMBER", "NOT AFTER", "NOT BEFORE"];
const NONE: &str = "NA";

/// A row for each certificate of each identity.
pub(super) fn rows(dump: &ZtunnelDump, now: Timestamp) -> Vec<Vec<String>> {
    dump.certificates.iter().flat_map(|it| of_identity(it, now)).collect()
}

fn of_identity(it: &Value, now: Timestamp) -> Vec<Vec<String>> {
    // The state is a text, or an object with the reason.
    let state = match &it["state"] {
        Value::String(state) => state.clone(),
        state => state.to_string(),
    };
    let state = if state.contains("Unavailable") { "Unavailable".to_owned() } else { state };
    let row = |kind: &str, certificate: &Value| {
        let or_none = |field: &str| {
            let cell = text(certificate, field);
            if cell.is_empty() { NONE.to_owned() } else { cell.to_owned() }
        };
        let serial = hexadecimal(text(certificate, "serialNumber")).unwrap_or_else(|| NONE.to_owned());
        let is_valid = is_valid(certificate, now).to_string();
        let cells = [text(it, "identity"), kind, &state, &is_valid, &serial];
        let mut cells: Vec<String> = cells.into_iter().map(str::to_owned).collect();
        cells.extend([or_none("expirationTime"), or_none("validFrom")]);
        cells
    };
    let chain = list(it, "certChain");
    if chain.is_empty() {
        return vec![row(NONE, &Value::Null)];
    }
    let roots = list(it, "rootCerts");
    let of_chain = chain.iter().enumerate().map(|(at, certificate)| {
        let kind = match at {
            0 => "Leaf",
            // Older versions of ztunnel have the root at the end of the chain.
            at if at + 1 == chain.len() && roots.is_empty() => "Root",
            _ => "Intermediate",
        };
        row(kind, certificate)
    });
    of_chain.chain(roots.iter().map(|certificate| row("Root", certificate))).collect()
}

fn is_valid(certificate: &Value, now: Timestamp) -> bool {
    let at = |field: &str| text(certificate, field).parse::<Timestamp>();
    matches!((at("validFrom"), at("expirationTime")), (Ok(from), Ok(until)) if from < now && now < until)
}

/// A decimal number of any length in hexadecimal; `None` if the text is not one.
fn hexadecimal(decimal: &str) -> Option<String> {
    let mut digits: Vec<u32> = decimal.chars().map(|digit| digit.to_digit(10)).collect::<Option<_>>()?;
    let mut reversed = String::new();
    while !digits.is_empty() {
        let mut rest = 0;
        let divided = digits.iter().map(|digit| {
            let value = rest * 10 + digit;
            rest = value % 16;
            value / 16
        });
        let divided: Vec<u32> = divided.collect();
        reversed.extend(char::from_digit(rest, 16));
        digits = divided.into_iter().skip_while(|digit| *digit == 0).collect();
    }
    (!reversed.is_empty()).then(|| reversed.chars().rev().collect())
}

#[cfg(test)]
mod tests {
    use super::hexadecimal;

    #[test]
    fn serial_numbers_have_any_length() {
        assert_eq!(hexadecimal("0").as_deref(), Some("0"));
        assert_eq!(hexadecimal("255").as_deref(), Some("ff"));
        let long = "340282366920938463463374607431768211456";
        assert_eq!(hexadecimal(long), Some(format!("1{}", "0".repeat(32))));
        for text in ["", "12a", "-1"] {
            assert_eq!(hexadecimal(text), None, "{text}");
        }
    }
}
