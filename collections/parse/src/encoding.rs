//! Base64 values of Secrets, kubeconfigs and protobuf `bytes` fields.

use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, Engine as _, GeneralPurpose, GeneralPurposeConfig};

const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD_ENGINE: GeneralPurpose = GeneralPurpose::new(&STANDARD, CONFIG);
const URL_SAFE_ENGINE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, CONFIG);

/// Decodes standard or URL-safe base64, with or without padding, as protobuf JSON accepts it. `None` if the text is
/// neither.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let engine = if text.contains(['-', '_']) { URL_SAFE_ENGINE } else { STANDARD_ENGINE };
    engine.decode(text.trim_end_matches('=')).ok()
}

/// Decodes base64 that may be broken into lines.
pub(crate) fn decode_base64_lines(text: &str) -> Option<Vec<u8>> {
    decode_base64(&text.split_ascii_whitespace().collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_with_and_without_padding() {
        assert_eq!(decode_base64("aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(decode_base64("aGVsbG8"), Some(b"hello".to_vec()));
        assert_eq!(decode_base64("aGVsbG9="), Some(b"hello".to_vec()));
        assert_eq!(decode_base64("-_8="), decode_base64("+/8="));
        assert!(decode_base64("-_8=").is_some());
        assert_eq!(decode_base64("a"), None);
        assert_eq!(decode_base64("a b="), None);
        assert_eq!(decode_base64_lines("aGVs\n bG8=\n"), Some(b"hello".to_vec()));
    }
}
