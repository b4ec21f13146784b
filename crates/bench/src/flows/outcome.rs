//! The outcome of one exchange with one strategy.

/// The outcome of one exchange.
pub(super) struct Outcome {
    pub sockets: usize,
    pub makespan_s: f64,
    /// Time that the busiest link needs for its traffic, in seconds.
    pub floor_s: f64,
    /// Times at which the chunks were complete, in seconds, in ascending order.
    pub chunk_s: Vec<f64>,
}

impl Outcome {
    /// Returns the time at which this many tenths of the chunks were complete, in seconds. With 0, returns the time
    /// at which the first chunk was complete.
    pub(super) fn complete_s(&self, tenths: usize) -> f64 {
        self.chunk_s[(tenths * self.chunk_s.len()).div_ceil(10).saturating_sub(1)]
    }
}
