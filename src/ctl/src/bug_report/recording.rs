//! The recording of a report: that of the control plane without what may be secret.

use std::io::{self, BufRead as _, BufReader, Write as _};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;

use super::redaction::{redact_fields, redacted_text};

/// The inputs whose values have encoded messages, in which names of fields cannot be recognized: EnvoyFilters, and settings of
/// extensions.
const ENCODED_INPUTS: [&str; 3] = ["raw_envoy_filters", "raw_traffic_extensions", "raw_wasm_plugins"];

/// A recording with redacted values. Records of the [`ENCODED_INPUTS`] are left out.
///
/// # Errors
/// It is no recording.
pub(super) fn redacted(recording: &[u8]) -> io::Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    for line in BufReader::new(MultiGzDecoder::new(recording)).lines() {
        let line = match line {
            Ok(line) => line,
            // A recording that is interrupted has everything up to there.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        };
        let mut value: Value = serde_json::from_str(&line)?;
        if value["write"]["input"].as_str().is_some_and(|input| ENCODED_INPUTS.contains(&input)) {
            continue;
        }
        if let Some(record) = value.get_mut("write").and_then(|write| write.get_mut("value")) {
            redact_fields(record);
        }
        writeln!(out, "{}", redacted_text(&value.to_string()))?;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn values_are_redacted_and_encoded_ones_left_out() {
        let lines = [
            r#"{"sluiceRecording":1}"#,
            r#"{"write":{"input":"raw_virtual_services","key":"a","value":{"headers":{"authorization":"s3cret","x":"y"}}}}"#,
            r#"{"write":{"input":"raw_envoy_filters","key":"b","value":{"patch":"czNjcmV0"}}}"#,
            r#"{"end":{"at":0.5,"epoch":1}}"#,
        ];
        let mut recording = GzEncoder::new(Vec::new(), Compression::default());
        for line in lines {
            writeln!(recording, "{line}").expect("written");
        }
        let redacted = redacted(&recording.finish().expect("written")).expect("a recording");
        let mut text = String::new();
        MultiGzDecoder::new(redacted.as_slice()).read_to_string(&mut text).expect("gzip");
        let expected = [lines[0], &lines[1].replace("s3cret", "[redacted]"), lines[3], ""].join("\n");
        assert_eq!(text, expected);
        assert!(super::redacted(b"no recording").is_err());
    }
}
