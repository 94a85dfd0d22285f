//! The floors: how much of each family has been reached and must not be lost.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::ads::Protocol;

/// Percent by family and protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Floors(BTreeMap<(String, Protocol), f64>);

impl Floors {
    /// Reads `floors.txt`: lines of `FAMILY SOTW DELTA` in percent, `#` starts a comment.
    ///
    /// # Errors
    /// A line is not of that form.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("read {}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut out = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [family, sotw, delta] => {
                    for (protocol, percent) in [(Protocol::Sotw, sotw), (Protocol::Delta, delta)] {
                        let percent: f64 = percent.parse().with_context(|| format!("read line {}", index + 1))?;
                        out.insert((family.to_owned(), protocol), percent);
                    }
                }
                _ => bail!("line {} is not FAMILY SOTW DELTA", index + 1),
            }
        }
        Ok(Self(out))
    }

    /// The floor of a family; zero where none is set.
    pub fn of(&self, family: &str, protocol: Protocol) -> f64 {
        self.0.get(&(family.to_owned(), protocol)).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_others_refused() {
        let floors = Floors::parse("# head\nservice 85 86.5 # why\n\n").expect("valid");
        assert_eq!(floors.of("service", Protocol::Delta), 86.5);
        assert_eq!(floors.of("other", Protocol::Sotw), 0.0);
        assert!(Floors::parse("service 85").is_err());
        assert!(Floors::parse("service 85 x").is_err());
    }
}
