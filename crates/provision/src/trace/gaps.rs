//! Splitting of imported reads with times into phases: an interval without reads ends a phase.

use std::time::Duration;

use super::{PhasesBy, Read, Span};

/// Collects imported reads with times into phases.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Minimum interval without reads that ends a phase, in microseconds; `None`: all reads are one phase.
    gap_us: Option<u64>,
    phases: Vec<Vec<Read>>,
    spans: Vec<Span>,
}

impl Gaps {
    /// Makes an empty collection of phases. `gap` is the minimum interval without reads that ends a phase; `None`:
    /// all reads are one phase.
    pub(super) fn new(gap: Option<Duration>) -> Self {
        let gap_us = gap.map(|gap| u64::try_from(gap.as_micros()).unwrap_or(u64::MAX));
        Self { gap_us, phases: Vec::new(), spans: Vec::new() }
    }

    /// Adds a read at the time `at_us`, in microseconds. Returns false, and does not add the read, if it is earlier
    /// than the previous one.
    #[must_use]
    pub(super) fn read(&mut self, at_us: u64, read: Read) -> bool {
        if let (Some(phase), Some(span)) = (self.phases.last_mut(), self.spans.last_mut()) {
            let Some(pause) = at_us.checked_sub(span.ended_us) else { return false };
            if self.gap_us.is_none_or(|gap| pause < gap) {
                span.ended_us = at_us;
                phase.push(read);
                return true;
            }
        }
        self.phases.push(vec![read]);
        self.spans.push(Span { began_us: at_us, ended_us: at_us, requests: None });
        true
    }

    /// Returns the rule that split the reads, the reads of each phase, and the span of each phase.
    pub(super) fn end(self) -> (PhasesBy, Vec<Vec<Read>>, Vec<Span>) {
        let by = self.gap_us.map_or(PhasesBy::One, |gap| PhasesBy::Gap { gap_ms: gap / 1000 });
        (by, self.phases, self.spans)
    }
}
