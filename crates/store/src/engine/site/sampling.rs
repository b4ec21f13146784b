//! Sampling of the transactions that arrive at a site's thread ([`crate::sampler`]).

use std::time::Instant;

use super::executor::Executor;
use super::mailbox::Outcome;
use crate::engine::PATIENCE;
use crate::sampler::{Sampled, WaitTime};
use crate::site::{Input, Output, ResumedTransaction, Ticket};
use crate::transaction::Transaction;

/// Maximum number of samples of one thread whose transactions have no outcome yet; further ones are dropped.
const SAMPLED_MAX: usize = 1_024;

impl Executor {
    /// Begins the sample of a transaction that has arrived, or returns `None` if the transaction is not to be
    /// sampled. `until` is the time until which the transaction may begin, from which the time of its request is
    /// computed.
    pub(super) fn sample(&self, transaction: &Transaction, until: Instant) -> Option<Sampled> {
        let sampler = self.shared.sampler.get()?;
        let every = Some(sampler.every()).filter(|every| *every > 0)?;
        // The sampling interval may have been longer before.
        let left = self.unsampled.get().min(every - 1);
        if left > 0 {
            self.unsampled.set(left - 1);
            return None;
        }
        let began = Instant::now();
        self.unsampled.set(every - 1);
        let asked = until.checked_sub(PATIENCE).unwrap_or(began);
        Some(Sampled {
            began,
            every,
            site: self.site,
            reads: transaction.reads.clone(),
            writes: transaction.writes.clone(),
            rows: None,
            log_lag_entries: self.core.borrow().lag_entries(transaction.session),
            waited: None,
            service_us: began.saturating_duration_since(asked).as_secs_f64() * 1e6,
            run_us: 0.0,
            commit_us: None,
            met_conflict: false,
        })
    }

    /// Records the run time of a sampled transaction that has run, or that the transaction waits.
    pub(super) fn time_run(&self, ticket: Ticket, mut sampled: Sampled) {
        sampled.run_us = sampled.began.elapsed().as_secs_f64() * 1e6;
        let core = self.core.borrow();
        (sampled.rows, sampled.met_conflict) = (core.rows_of(ticket), core.met_conflict(ticket));
        let mut all = self.sampled.borrow_mut();
        // The bound covers transactions that a site lost, which have no outcome.
        if all.len() < SAMPLED_MAX {
            if sampled.rows.is_none() {
                self.waiting.set(self.waiting.get() + 1);
            }
            all.insert(ticket, sampled);
        }
    }

    /// Feeds an input to the site, and records the waiting times of sampled transactions that the input let run.
    pub(super) fn on(&self, input: Input) -> Vec<Output> {
        let mut core = self.core.borrow_mut();
        if self.waiting.get() == 0 {
            return core.on(input);
        }
        let began = Instant::now();
        let outputs = core.on(input);
        core.resumed().iter().for_each(|woken| self.time_wait(woken, began));
        outputs
    }

    /// Records the waiting time of a sampled transaction that could run at last. `began` is the time at which the
    /// site was given the input for which the transaction had waited.
    fn time_wait(&self, woken: &ResumedTransaction, began: Instant) {
        let ResumedTransaction { ticket, cause, rows } = *woken;
        let mut all = self.sampled.borrow_mut();
        if let Some(sampled) = all.get_mut(&ticket).filter(|sampled| sampled.rows.is_none()) {
            let us = began.saturating_duration_since(sampled.began).as_secs_f64() * 1e6;
            sampled.run_us = began.elapsed().as_secs_f64() * 1e6;
            (sampled.rows, sampled.waited) = (Some(rows), Some(WaitTime { cause, us }));
            self.waiting.set(self.waiting.get() - 1);
        }
    }

    /// Completes the sample of a transaction that has its outcome, or was returned, and passes the sample to the
    /// sampler. The sample of a failed transaction is dropped.
    pub(super) fn time_outcome(&self, ticket: Ticket, outcome: &Outcome) {
        if self.sampled.borrow().is_empty() {
            return;
        }
        let Some(mut sampled) = self.sampled.borrow_mut().remove(&ticket) else { return };
        if sampled.rows.is_none() {
            self.waiting.set(self.waiting.get() - 1);
        }
        let Some(sampler) = self.shared.sampler.get() else { return };
        match outcome {
            Outcome::Answer(_, Ok(done)) => {
                let before_us = sampled.run_us + sampled.waited.map_or(0.0, |waited| waited.us);
                let us = sampled.began.elapsed().as_secs_f64() * 1e6 - before_us;
                sampled.commit_us = done.committed.map(|_| us);
                sampler.put(sampled);
            }
            Outcome::Rerouted(_) => sampler.put_returned(sampled),
            Outcome::Answer(_, Err(_)) => {}
        }
    }
}
