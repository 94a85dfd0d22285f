//! Misspelt flags.

use sluice_variables::{FLAGS_WITHOUT_EFFECT, nearest};

/// The flag that is similar to a misspelt one, without dashes. `None` for a flag of istiod.
pub(crate) fn similar_flag<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if FLAGS_WITHOUT_EFFECT.iter().any(|flag| flag.name == name) {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    nearest(known, |known| strsim::damerau_levenshtein(&lower, &known.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_flags_cause_a_suggestion() {
        let known = ["configDir", "config-dir", "grpcAddr"];
        assert_eq!(similar_flag("configDri", known), Some("configDir"));
        assert_eq!(similar_flag("configdir", known), Some("configDir"));
        assert_eq!(similar_flag("vklog", known), None);
        assert_eq!(similar_flag("someOtherFlag", known), None);
    }
}
