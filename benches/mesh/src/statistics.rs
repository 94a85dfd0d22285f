//! Percentiles.

/// The value at a share (0 to 1) of sorted values, by the nearest rank; 0 if there are none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a rank")]
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1).min(sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

/// The same for values in any order.
pub(crate) fn of(values: impl IntoIterator<Item = f64>, share: f64) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    percentile(&sorted, share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let values = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(values.map(|_| percentile(&values, 0.5)), [2.0; 4]);
        assert_eq!((percentile(&values, 1.0), percentile(&values, 0.0), percentile(&[], 0.5)), (4.0, 1.0, 0.0));
        assert_eq!(of([3.0, 1.0, 2.0], 0.5), 2.0);
    }
}
