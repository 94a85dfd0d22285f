//! Names that a mistyped one may mean.

/// Lowest similarity of a name that is proposed.
const MIN_SIMILARITY: f64 = 0.7;

/// The most similar of the names, if it is similar enough.
pub(crate) fn similar<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let scored = names.map(|candidate| (strsim::jaro_winkler(name, candidate), candidate));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.filter(|(score, _)| *score >= MIN_SIMILARITY).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_proposed() {
        let names = ["cart-7f", "ratings-1"];
        assert_eq!(similar("card-7f", names.into_iter()), Some("cart-7f"));
        assert_eq!(similar("zzz", names.into_iter()), None);
        assert_eq!(similar("cart", std::iter::empty()), None);
    }
}
