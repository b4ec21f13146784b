//! The outcome of one exchange by one strategy.

/// How one exchange went.
pub(super) struct Outcome {
    pub sockets: usize,
    pub makespan_s: f64,
    /// The time that the busiest link needs for its traffic.
    pub floor_s: f64,
    /// When each chunk was complete, the first one first.
    pub chunk_s: Vec<f64>,
}

impl Outcome {
    /// When so many tenths of the chunks were complete; with none, when the first one was.
    pub(super) fn complete_s(&self, tenths: usize) -> f64 {
        self.chunk_s[(tenths * self.chunk_s.len()).div_ceil(10).saturating_sub(1)]
    }
}
