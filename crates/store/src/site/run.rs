//! Executes transactions and changes of the design. A request runs at once if it conflicts with no other, else it is
//! queued; it is answered when the log has every change that the answer could show.
//!
//! Most transactions conflict with no other, and touch only partitions that their site masters. For these there is no
//! second lookup, and no memory is allocated that they do not retain.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use super::{
    BEHIND_MS_MAX, Core, Held, Output, ResumedTransaction, Ticket, WAITING_MAX, Waiting, Want,
};
use crate::key::{Key, KeyRange, Value};
use crate::output_buffer::{OutputBuffer, UNCOUNTED_BYTES};
use crate::record::{Body, Position, Update, Write};
use crate::reply::Reply;
use crate::sampler::Cause;
use crate::transaction::{Abort, Done, Transaction, View, WRITTEN_BYTES_MAX};

/// Maximum number of a site's log entries that are not in the log yet; it bounds the memory that a halted log costs.
const AHEAD_MAX: u64 = 100_000;

impl Core {
    /// Runs, queues, returns or refuses a request that has arrived and must begin before `until_ms`, in ms of the
    /// site's clock.
    pub(super) fn ask(&mut self, ticket: Ticket, until_ms: u64, mut what: Want) {
        if !self.is_live || !what.has_room() {
            let (since_ms, cause, touched) = (self.now_ms, None, None);
            let waiting = Waiting { ticket, since_ms, until_ms, what, cause, touched };
            return self.return_to_caller(waiting);
        }
        if self.is_stalled && what.writes() {
            return self.refuse(ticket, Abort::LogFull);
        }
        if self.written - self.ordered >= AHEAD_MAX {
            return self.refuse(ticket, Abort::Busy);
        }
        if self.waiting.is_empty()
            && self.changing.is_empty()
            && !self.two_phase.has_locks()
            && let Want::Transaction(transaction) = &mut what
            && transaction.session <= self.known
            && let Some(last) = self.last_own_entry(transaction)
        {
            return self.run(ticket, transaction, last);
        }
        #[cfg(test)]
        self.look_early(ticket, &what);
        if self.waiting.len() >= WAITING_MAX {
            return self.refuse(ticket, Abort::Busy);
        }
        // No request that waits now is from a client whose requests were returned.
        self.returned.clear();
        let (since_ms, cause, touched) = (self.now_ms, None, None);
        let waiting = Waiting { ticket, since_ms, until_ms, what, cause, touched };
        let waiting = self.attempt(waiting);
        self.waiting.extend(waiting);
    }

    /// Tries to begin each waiting request, in order of arrival.
    pub(super) fn attempt_all(&mut self) {
        #[cfg(feature = "shuttle")]
        if crate::sync::fault::is(crate::sync::fault::Fault::WaitersForgotten) {
            return;
        }
        self.taken.clear();
        self.queued.clear();
        self.returned.clear();
        for waiting in mem::take(&mut self.waiting) {
            let waiting = self.attempt(waiting);
            self.waiting.extend(waiting);
        }
    }

    /// Runs, returns or refuses a request; or returns it as `Some` if it has to wait. A request waits if it overlaps
    /// with an earlier waiting one, or if an earlier request of its client waits.
    pub(super) fn attempt(&mut self, mut waiting: Waiting) -> Option<Waiting> {
        let client = waiting.what.client();
        let is_behind = client.is_some_and(|client| self.returned.contains(&client));
        if is_behind || !waiting.what.has_room() {
            self.returned.extend(client);
            self.return_to_caller(waiting);
            return None;
        }
        if self.is_stalled && waiting.what.writes() {
            self.turn_down(waiting, Abort::LogFull);
            return None;
        }
        // The request may be meant for a design that the site does not know yet.
        let is_early = waiting.what.session() > self.known;
        #[cfg(test)]
        let is_early = is_early && !self.has(super::tests::Bug::SessionIgnored);
        if is_early
            && self.now_ms >= waiting.since_ms + BEHIND_MS_MAX
            && waiting.what.fall_back_to_masters()
        {
            self.returned.extend(client);
            self.return_to_caller(waiting);
            return None;
        }
        if is_early || client.is_some_and(|client| self.queued.contains(&client)) {
            let cause = if is_early { Cause::Updates } else { Cause::Client };
            waiting.cause.get_or_insert(cause);
            self.queued.extend(client);
            return Some(waiting);
        }
        let locks = match self.locks(&waiting.what, &mut waiting.touched) {
            Ok(locks) => locks,
            Err(Abort::Elsewhere) => {
                let Waiting { ticket, until_ms, what, .. } = waiting;
                match what {
                    Want::Transaction(one) if one.is_distributed => {
                        self.coordinate(ticket, until_ms, one);
                    }
                    what => {
                        self.returned.extend(client);
                        self.return_to_caller(Waiting { what, ..waiting });
                    }
                }
                return None;
            }
            Err(abort) => {
                self.turn_down(waiting, abort);
                return None;
            }
        };
        let is_compatible = |start| match &waiting.what {
            Want::Locks(request) if !request.writes_to(start, &self.design) => {
                !self.two_phase.is_exclusive(start)
            }
            _ => !self.two_phase.is_locked(start),
        };
        let is_free = |start| {
            !self.taken.contains(start)
                && !self.changing.contains_key(start)
                && is_compatible(start)
        };
        #[cfg(test)]
        let is_free = |start| is_free(start) || self.has(super::tests::Bug::LockIgnored);
        let is_unlocked = locks.iter().all(is_free);
        if is_unlocked && self.begin(&mut waiting, &locks) {
            return None;
        }
        if !is_unlocked {
            self.last_conflict = Some(waiting.ticket);
        }
        let cause = if is_unlocked { Cause::Updates } else { Cause::Partition };
        waiting.cause.get_or_insert(cause);
        self.taken.extend(locks);
        self.queued.extend(client);
        Some(waiting)
    }

    /// Begins a request whose locks are free, if its snapshot is available; `locks` are the first keys of the locked
    /// partitions. Returns false if the request has to wait.
    fn begin(&mut self, waiting: &mut Waiting, locks: &[Key]) -> bool {
        match &mut waiting.what {
            Want::Transaction(transaction) => {
                if waiting.touched.as_ref().is_some_and(|touched| self.must_wait(touched)) {
                    return false;
                }
                let Some(last) = self.last_if_possible(transaction) else { return false };
                self.run(waiting.ticket, transaction, last);
                let rows = self.rows_of(waiting.ticket);
                if let Some((cause, rows)) = waiting.cause.zip(rows) {
                    self.resumed.push(ResumedTransaction { ticket: waiting.ticket, cause, rows });
                }
            }
            Want::Locks(request) => self.take_locks(request),
            Want::Change(change) => {
                let number = self.write(Body::Change(change.clone()));
                self.changing.extend(locks.iter().map(|start| (start.clone(), number)));
                self.hold(waiting.ticket, Ok(Reply::default()), number, true, None);
            }
        }
        true
    }

    /// Runs a transaction, which sees this site's log entries up to number `last`, and queues or gives its answer.
    fn run(&mut self, ticket: Ticket, transaction: &mut Transaction, last: u64) {
        if self.is_stalled && last > self.ordered {
            return self.refuse(ticket, Abort::LogFull);
        }
        let (reads, writes) = (&transaction.reads, &transaction.writes);
        let mut view = View::new(&*self, reads, writes);
        #[cfg(test)]
        {
            view.rows = self.rows_for(ticket);
        }
        let answer = transaction.procedure.run(&mut view);
        let answer = self.checked(answer, &view, transaction.output.as_ref());
        let is_stale = view.is_stale.get();
        let (rows_read, written) = (view.rows_read.get(), view.written);
        if is_stale {
            self.last_conflict = Some(ticket);
        }
        self.last_run = Some((ticket, rows_read, written.len() as u32));
        self.work[0] += u64::from(rows_read);
        self.work[1] += written.len() as u64;
        self.work[3] += 1;
        let has_written = answer.is_ok() && !written.is_empty();
        let number = if has_written { self.commit(written) } else { last };
        if let Some(client) = transaction.client.filter(|_| number > self.ordered) {
            let ahead = self.ahead.entry(client).or_default();
            *ahead = number.max(*ahead);
        }
        let reads = transaction.writes.is_empty().then(|| mem::take(&mut transaction.reads));
        self.hold(ticket, answer, number, has_written, reads);
    }

    /// Returns the answer of a procedure that ran over `view`, or an error if it writes too much. The answer is charged
    /// to the client's output buffer.
    pub(super) fn checked(
        &self,
        answer: Result<Reply, Abort>,
        view: &View<'_>,
        output: Option<&Arc<OutputBuffer>>,
    ) -> Result<Reply, Abort> {
        let bytes = view.written_bytes();
        let is_too_large = bytes > WRITTEN_BYTES_MAX;
        let is_put = || view.written.values().any(Option::is_some);
        let is_beyond = self.is_full && is_put();
        answer
            .and_then(|answer| if is_beyond { Err(Abort::OutOfMemory) } else { Ok(answer) })
            .and_then(|answer| if is_too_large { Err(Abort::TooLarge(bytes)) } else { Ok(answer) })
            .and_then(|answer| charged(answer, output))
    }

    /// Applies a transaction's writes to the copies, writes them into the log, and returns the number of the log
    /// entry. A value of `None` deletes the row.
    fn commit(&mut self, written: BTreeMap<Key, Option<Value>>) -> u64 {
        let number = self.written + 1;
        let mut writes: Vec<Write> = Vec::new();
        let mut last: Option<&super::Copy> = None;
        for (key, value) in written {
            let copy = match last {
                Some(copy) if copy.range.contains(&key) => copy,
                _ => self.copy_of(&key).expect("what is mastered here is here"),
            };
            if writes.last().is_none_or(|write| write.start != copy.range.start) {
                // Every site reads this key, so it gets memory of its own.
                let start = copy.range.start.unshared();
                writes.push(Write { start, version: copy.version + 1, rows: Vec::new() });
            }
            let update = Update::between(|| copy.rows.get(&key), value);
            last = Some(copy);
            writes.last_mut().expect("one was pushed").rows.push((key, update));
        }
        self.record_undo(number, &writes);
        for write in &writes {
            let copy = self.copies.get_mut(&write.start).expect("what is mastered here is here");
            if copy.last <= self.ordered {
                copy.note_logged(copy.version);
            }
            copy.apply(write);
            copy.last = number;
            let deleted = write.rows.iter().filter(|(_, update)| *update == Update::Delete);
            copy.unlogged_deletes.extend(deleted.map(|(key, _)| (key.clone(), write.version)));
        }
        self.write(Body::Commit(writes))
    }

    /// Retains an answer until the log has this site's entries up to `number`. The answer then waits for earlier
    /// answers too; it is given at once if all these entries are in the log, and the request wrote none.
    pub(super) fn hold(
        &mut self,
        ticket: Ticket,
        answer: Result<Reply, Abort>,
        number: u64,
        has_written: bool,
        reads: Option<Vec<KeyRange>>,
    ) {
        #[cfg(test)]
        let number = match self.has(super::tests::Bug::AnswerAheadOfLog) {
            true => number.min(self.ordered),
            false => number,
        };
        if number <= self.ordered && !has_written {
            let done = answer.map(|answer| Done { answer, committed: None });
            return self.say(Output::Answer(ticket, self.known, done));
        }
        // A reader waits after the writers before it, so that the queue stays in order.
        let number = self.answers.back().map_or(number, |before| number.max(before.number));
        self.answers.push_back(Held { number, ticket, answer, has_written, reads });
    }

    /// Gives the answers for which the log now has all of this site's entries. `position` is that of the entry which
    /// came last, and thus of the commit that is answered.
    pub(super) fn release(&mut self, position: Position) {
        while let Some(held) = self.answers.front()
            && held.number <= self.ordered
        {
            let held = self.answers.pop_front().expect("there is one");
            let committed = held.has_written.then_some(position);
            let done = held.answer.map(|answer| Done { answer, committed });
            self.say(Output::Answer(held.ticket, self.known, done));
        }
    }
}

/// Charges the reply of a transaction to its client's output buffer, or returns an error if that has no room.
fn charged(mut reply: Reply, output: Option<&Arc<OutputBuffer>>) -> Result<Reply, Abort> {
    let bytes = reply.len();
    let Some(output) = output.filter(|_| bytes > UNCOUNTED_BYTES) else {
        return Ok(reply);
    };
    let charge = output.try_charge(bytes, reply.shared());
    reply.keep(Some(charge.ok_or_else(|| Abort::Refused(output.all().refusal()))?));
    Ok(reply)
}
