//! The outcome of one exchange by one strategy.

/// The outcome of one exchange.
pub(super) struct Outcome {
    pub sockets: usize,
    pub makespan_s: f64,
    /// The time that the busiest link needs for its traffic.
    pub floor_s: f64,
    /// Time at which each chunk was complete, in s, the first one first.
    pub chunk_s: Vec<f64>,
}

impl Outcome {
    /// Time, in s, at which this many tenths of the chunks were complete; with 0, at which the
    /// first was.
    pub(super) fn complete_s(&self, tenths: usize) -> f64 {
        self.chunk_s[(tenths * self.chunk_s.len()).div_ceil(10).saturating_sub(1)]
    }
}
