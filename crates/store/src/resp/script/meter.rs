//! The limits on the instructions and the time of a transaction's scripts.

use std::cell::Cell;
use std::sync::Arc;

use mlua::VmState;

use super::super::rows::Allowance;
use super::ScriptLimits;

/// A counter of a script's instructions and time, which ends the script when it exceeds a limit.
pub(super) struct Meter {
    /// Number of instructions that the transaction's scripts may still run.
    pub steps_left: Cell<u64>,
    /// Time in ms of the clock at which the script is ended.
    pub until_ms: u64,
    clock_ms: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
    /// True once the script has exceeded a limit, or must end for another reason.
    pub is_over: Cell<bool>,
    /// Number of values that libraries have read and written, modulo `STEPS`.
    values: Cell<u32>,
}

impl Meter {
    pub fn new(limits: &ScriptLimits, allowance: &Allowance) -> Self {
        let clock_ms = limits.clock_ms.clone();
        let (steps_left, until_ms) = allowance.begun.unwrap_or_else(|| {
            let now_ms = clock_ms.as_ref().map_or(0, |clock_ms| clock_ms());
            (limits.steps_max, now_ms.saturating_add(limits.time_ms_max))
        });
        let (steps_left, is_over) = (Cell::new(steps_left), Cell::new(false));
        Self { steps_left, until_ms, clock_ms, is_over, values: Cell::new(0) }
    }

    /// Counts a value that a library reads or writes as one instruction; returns an error if the script is over a
    /// limit.
    pub fn count(&self) -> mlua::Result<()> {
        self.values.set((self.values.get() + 1) % STEPS);
        if self.values.get() == 0 { self.step().map(|_| ()) } else { Ok(()) }
    }

    /// Counts `STEPS` instructions; returns an error if the script is over a limit.
    pub fn step(&self) -> mlua::Result<VmState> {
        let steps_left = self.steps_left.get().saturating_sub(STEPS.into());
        self.steps_left.set(steps_left);
        let is_late = || self.clock_ms.as_ref().is_some_and(|clock_ms| clock_ms() > self.until_ms);
        if self.is_over.get() || steps_left == 0 || is_late() {
            self.is_over.set(true);
            return Err(mlua::Error::runtime("it is over"));
        }
        Ok(VmState::Continue)
    }
}

/// Number of Lua instructions between two checks of a script's limits.
pub(super) const STEPS: u32 = 200;
