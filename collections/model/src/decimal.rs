//! Exact decimal numbers where an API has floating-point ones.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number in billionths. Stands in for a protobuf `double`, because model values are ordered and hashed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Decimal {
    billionths: i64,
}

impl Decimal {
    const UNIT: f64 = 1e9;

    /// The nearest decimal; not-a-number is zero and what is out of range is clamped.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "float to integer casts saturate, which is the contract")]
    pub fn from_f64(value: f64) -> Self {
        Self { billionths: (value * Self::UNIT).round() as i64 }
    }

    /// The number as the protobuf `double` to send.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "nine digits after the point are all that is kept")]
    pub fn to_f64(self) -> f64 {
        self.billionths as f64 / Self::UNIT
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_f64())
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.to_f64())
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(Self::from_f64)
    }
}

#[cfg(test)]
mod tests {
    use super::Decimal;

    #[test]
    fn usual_numbers_survive_the_round_trip() {
        for value in [0.0, 0.1, 1.0, 12.5, 33.333_333, 99.99, 100.0] {
            assert_eq!(Decimal::from_f64(value).to_f64().to_bits(), f64::to_bits(value), "{value}");
        }
        assert_eq!(Decimal::from_f64(f64::NAN), Decimal::default());
    }
}
