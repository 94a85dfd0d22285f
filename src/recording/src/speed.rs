//! How fast a recording is replayed.

use std::str::FromStr;
use std::time::Duration;

/// How fast the steps of a recording are replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReplaySpeed {
    /// Without waiting.
    Max,
    /// So many times as fast as recorded.
    Times(f64),
}

/// A text that is no speed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected max, or a positive number with x such as 1x or 10x")]
pub struct InvalidSpeed;

impl ReplaySpeed {
    /// The time that a time of the recording, in seconds, takes in the replay.
    #[must_use]
    pub fn time_of(self, seconds: f64) -> Duration {
        match self {
            Self::Max => Duration::ZERO,
            Self::Times(times) => Duration::try_from_secs_f64(seconds / times).unwrap_or_default(),
        }
    }
}

impl FromStr for ReplaySpeed {
    type Err = InvalidSpeed;

    fn from_str(text: &str) -> Result<Self, InvalidSpeed> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let times = text.strip_suffix('x').and_then(|times| times.parse::<f64>().ok());
        times.filter(|times| times.is_finite() && *times > 0.0).map(Self::Times).ok_or(InvalidSpeed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_max_or_multiples() {
        assert_eq!("max".parse(), Ok(ReplaySpeed::Max));
        assert_eq!(("1x".parse(), "0.5x".parse()), (Ok(ReplaySpeed::Times(1.0)), Ok(ReplaySpeed::Times(0.5))));
        for text in ["", "x", "1", "0x", "-1x", "infx", "fast"] {
            assert_eq!(text.parse::<ReplaySpeed>(), Err(InvalidSpeed), "{text}");
        }
    }

    #[test]
    fn times_are_divided_by_the_speed() {
        assert_eq!(ReplaySpeed::Max.time_of(3.0), Duration::ZERO);
        assert_eq!(ReplaySpeed::Times(10.0).time_of(3.0), Duration::from_millis(300));
        assert_eq!(ReplaySpeed::Times(0.5).time_of(3.0), Duration::from_secs(6));
        assert_eq!(ReplaySpeed::Times(1.0).time_of(-1.0), Duration::ZERO);
    }
}
