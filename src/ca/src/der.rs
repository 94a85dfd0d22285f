//! Writes the little DER that certificates need.

use jiff::Timestamp;

pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OID: u8 = 0x06;
pub(crate) const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
const BOOLEAN: u8 = 0x01;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// A value of a tag.
pub(crate) fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 6);
    out.push(tag);
    match content.len() {
        #[allow(clippy::cast_possible_truncation, reason = "less than 128")]
        length @ 0..=0x7f => out.push(length as u8),
        length => {
            let bytes = length.to_be_bytes();
            let bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
            #[allow(clippy::cast_possible_truncation, reason = "at most 8")]
            out.push(0x80 | bytes.len() as u8);
            out.extend_from_slice(bytes);
        }
    }
    out.extend_from_slice(content);
    out
}

/// A value made of values.
pub(crate) fn list(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    value(tag, &parts.concat())
}

/// A number that is not negative.
pub(crate) fn unsigned(bytes: &[u8]) -> Vec<u8> {
    let bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
    match bytes.first() {
        None => value(INTEGER, &[0]),
        Some(first) if first & 0x80 != 0 => value(INTEGER, &[&[0], bytes].concat()),
        Some(_) => value(INTEGER, bytes),
    }
}

/// Whole bytes as bits.
pub(crate) fn bits(bytes: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[0], bytes].concat())
}

/// One byte of named bits, without the zeros at its end.
pub(crate) fn named_bits(byte: u8) -> Vec<u8> {
    #[allow(clippy::cast_possible_truncation, reason = "at most 8")]
    value(BIT_STRING, &[byte.trailing_zeros().min(7) as u8, byte])
}

/// An extension of a certificate.
pub(crate) fn extension(oid: &[u8], critical: bool, content: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &[BOOLEAN, 1, 0xff] } else { &[] };
    list(SEQUENCE, &[&value(OID, oid), critical, &value(OCTET_STRING, content)])
}

/// A second since the Unix epoch, as certificates write it: with two digits of the year up to 2049. What cannot be
/// written is the last moment that can.
pub(crate) fn time(second: i64) -> Vec<u8> {
    const LAST: &str = "99991231235959Z";
    let Ok(at) = Timestamp::from_second(second) else { return value(GENERALIZED_TIME, LAST.as_bytes()) };
    let text = at.strftime("%Y%m%d%H%M%SZ").to_string();
    match text.get(..4) {
        Some(year) if ("1950".."2050").contains(&year) => value(UTC_TIME, &text.as_bytes()[2..]),
        _ => value(GENERALIZED_TIME, text.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_numbers_are_the_shortest() {
        assert_eq!(value(OCTET_STRING, &[7; 127])[..2], [4, 127]);
        assert_eq!(value(OCTET_STRING, &[7; 128])[..3], [4, 0x81, 128]);
        assert_eq!(value(OCTET_STRING, &[7; 256])[..4], [4, 0x82, 1, 0]);
        assert_eq!(unsigned(&[0, 0, 1]), [2, 1, 1]);
        assert_eq!(unsigned(&[0x80]), [2, 2, 0, 0x80]);
        assert_eq!(unsigned(&[0, 0]), [2, 1, 0]);
        assert_eq!(named_bits(0b1010_0000), [3, 2, 5, 0b1010_0000]);
    }

    #[test]
    fn times_change_their_form_in_2050() {
        assert_eq!(time(0), [&[0x17, 13], &b"700101000000Z"[..]].concat());
        assert_eq!(time(2_524_607_999), [&[0x17, 13], &b"491231235959Z"[..]].concat());
        assert_eq!(time(2_524_608_000), [&[0x18, 15], &b"20500101000000Z"[..]].concat());
        assert_eq!(time(i64::MAX), [&[0x18, 15], &b"99991231235959Z"[..]].concat());
    }
}
