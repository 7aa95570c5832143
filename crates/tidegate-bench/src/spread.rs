//! Statistics of the rounds of a benchmark.

/// The median of some figures, with the minimum and the maximum.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    pub(crate) fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: at(sorted.len() / 2),
            least: at(0),
            most: at(sorted.len().saturating_sub(1)),
        }
    }

    /// Computes the spread of the ratios round by round. Samples of the same round saw the same
    /// machine.
    pub(crate) fn of_ratios(figures: &[f64], base: &[f64]) -> Self {
        let ratios: Vec<f64> = figures
            .iter()
            .zip(base)
            .map(|(figure, base)| figure / base)
            .collect();
        Self::of(&ratios)
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2}-{:.2})", self.median, self.least, self.most)
    }
}
