//! The contract of a journal, as checks that the tests of each implementation run.

use serde_json::json;

use super::{Journal, JournalError, OperatorRequests, Request, Update};
use crate::event::Progress;
use crate::id::JobId;
use crate::prediction::{Interval, Prediction};
use crate::record::{Limits, Record, Requested};
use crate::state::State;

/// A claim with this `stale_after_ms` is refused while the job has an owner, since no owner is ever stale.
const NEVER: u64 = u64::MAX;

/// Checks the whole contract of [`Journal`] with new jobs in `journal`. Panics where the contract is broken.
#[crate::boxed]
pub async fn check(journal: &dyn Journal) {
    a_record_is_loaded_as_it_was_created(journal).await;
    an_id_is_created_once(journal).await;
    an_unknown_job_is_named(journal).await;
    the_list_is_complete_and_oldest_first(journal).await;
    what_is_saved_is_loaded(journal).await;
    what_is_not_saved_stays(journal).await;
    a_live_owner_keeps_its_job(journal).await;
    a_stale_owner_is_fenced(journal).await;
    a_released_job_is_claimed_at_once(journal).await;
    an_illegal_transition_is_refused(journal).await;
    a_request_reaches_the_owner(journal).await;
    a_final_job_is_left_alone(journal).await;
    a_record_is_removed_once_its_job_has_ended(journal).await;
    of_many_claims_at_once_one_is_granted(journal).await;
    a_save_and_a_request_at_once_lose_nothing(journal).await;
}

async fn created(journal: &dyn Journal, at_ms: u64) -> Record {
    let record = Record::new("contract", json!({"ns": ["a.b"]}), at_ms);
    journal.create(&record).await.expect("a new record is created");
    record
}

async fn claimed(journal: &dyn Journal, id: &JobId, stale_after_ms: u64) -> u64 {
    journal.claim(id, "host/1", stale_after_ms).await.expect("the job is claimed").epoch
}

async fn load(journal: &dyn Journal, id: &JobId) -> Record {
    journal.load(id).await.expect("the record is loaded")
}

fn state(state: State) -> Update {
    Update { state: Some(state), ..Update::default() }
}

fn running(phase: &str) -> State {
    State::Running { phase: phase.to_owned() }
}

async fn a_record_is_loaded_as_it_was_created(journal: &dyn Journal) {
    let mut record = Record::new("contract", json!({"n": 1, "deep": [{"x": null}]}), 1_000);
    record.limits.bytes_s = Some(u64::from(u32::MAX) + 1);
    journal.create(&record).await.expect("a new record is created");
    assert_eq!(load(journal, &record.id).await, record);
}

async fn an_id_is_created_once(journal: &dyn Journal) {
    let record = created(journal, 2_000).await;
    let again = journal.create(&record).await;
    assert!(matches!(again, Err(JournalError::Exists { .. })), "{again:?}");
}

async fn an_unknown_job_is_named(journal: &dyn Journal) {
    let id = JobId::from_parts(1, 1);
    let answers = [
        journal.load(&id).await.err(),
        journal.claim(&id, "host/1", 0).await.err(),
        journal.save(&id, 1, &Update::default()).await.err(),
        journal.release(&id, 1).await.err(),
        journal.request(&id, &Request::Control(Requested::Run)).await.err(),
    ];
    for answer in answers {
        let unknown =
            matches!(&answer, Some(JournalError::Unknown { id: named, .. }) if *named == id);
        assert!(unknown, "{answer:?}");
    }
}

async fn the_list_is_complete_and_oldest_first(journal: &dyn Journal) {
    let made = [created(journal, 3_002).await, created(journal, 3_001).await];
    let listed = journal.list().await.expect("the records are listed");
    let place = |record: &Record| listed.iter().position(|listed| listed == record);
    let (newer, older) = (place(&made[0]), place(&made[1]));
    assert!(older.is_some() && newer.is_some(), "the list misses a record");
    assert!(older < newer, "the list is not oldest first");
}

async fn what_is_saved_is_loaded(journal: &dyn Journal) {
    let id = created(journal, 4_000).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    let progress = Progress { documents_done: 7, rate_bytes_s: Some(0.5), ..Progress::default() };
    let predicted = Prediction {
        name: "copy_s".to_owned(),
        predicted: Interval::within(86.5, 1.5),
        at_ms: 1_764_460_800_000,
        realized: None,
    };
    let update = Update {
        state: Some(running("copy")),
        progress: Some(progress.clone()),
        predictions: Some(vec![predicted.clone()]),
        checkpoint: Some(json!({"token": "x", "slices": [1, 2]})),
    };
    journal.save(&id, epoch, &update).await.expect("the owner saves");
    let record = load(journal, &id).await;
    assert_eq!(record.state, running("copy"));
    assert_eq!(record.progress, Some(progress));
    assert_eq!(record.predictions, [predicted]);
    assert_eq!(record.checkpoint, json!({"token": "x", "slices": [1, 2]}));
}

async fn what_is_not_saved_stays(journal: &dyn Journal) {
    let id = created(journal, 4_500).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    let update = Update { checkpoint: Some(json!(1)), ..state(running("copy")) };
    journal.save(&id, epoch, &update).await.expect("the owner saves");
    journal.save(&id, epoch, &Update::default()).await.expect("the owner gives a sign of life");
    let record = load(journal, &id).await;
    assert_eq!((record.state, record.checkpoint), (running("copy"), json!(1)));
}

async fn a_live_owner_keeps_its_job(journal: &dyn Journal) {
    let id = created(journal, 5_000).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    let second = journal.claim(&id, "host/2", NEVER).await;
    let named = matches!(&second, Err(JournalError::Owned { process, .. }) if process == "host/1");
    assert!(named, "{second:?}");
    journal.save(&id, epoch, &Update::default()).await.expect("the owner still saves");
}

async fn a_stale_owner_is_fenced(journal: &dyn Journal) {
    let id = created(journal, 6_000).await.id;
    let old = claimed(journal, &id, NEVER).await;
    let new = claimed(journal, &id, 0).await;
    assert!(new > old, "epochs must grow: {new} after {old}");
    let late = Update { checkpoint: Some(json!("late")), ..state(running("copy")) };
    let saved = journal.save(&id, old, &late).await;
    let named = matches!(
        saved, Err(JournalError::Fenced { epoch, now, .. }) if epoch == old && now == new
    );
    assert!(named, "{saved:?}");
    let released = journal.release(&id, old).await;
    assert!(matches!(released, Err(JournalError::Fenced { .. })), "{released:?}");
    assert_eq!(load(journal, &id).await.checkpoint, json!(null), "a fenced save was kept");
    journal.save(&id, new, &Update::default()).await.expect("the new owner saves");
}

async fn a_released_job_is_claimed_at_once(journal: &dyn Journal) {
    let id = created(journal, 7_000).await.id;
    let first = claimed(journal, &id, NEVER).await;
    journal.release(&id, first).await.expect("the owner releases");
    assert_eq!(load(journal, &id).await.owner, None);
    let second = claimed(journal, &id, NEVER).await;
    assert!(second > first, "epochs must grow after a release too: {second} after {first}");
    let saved = journal.save(&id, first, &Update::default()).await;
    assert!(matches!(saved, Err(JournalError::Fenced { .. })), "{saved:?}");
}

async fn an_illegal_transition_is_refused(journal: &dyn Journal) {
    let id = created(journal, 8_000).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    let saved = journal.save(&id, epoch, &state(State::Done)).await;
    assert!(matches!(saved, Err(JournalError::Transition { .. })), "{saved:?}");
    assert_eq!(load(journal, &id).await.state, State::Planned);
}

async fn a_request_reaches_the_owner(journal: &dyn Journal) {
    let id = created(journal, 9_000).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    let limits = Limits { documents_s: Some(500), ..Limits::default() };
    for request in [Request::Control(Requested::Pause), Request::Limits(limits)] {
        journal.request(&id, &request).await.expect("the operator requests");
    }
    let asked = journal.save(&id, epoch, &Update::default()).await.expect("the owner saves");
    assert_eq!(asked, OperatorRequests { control: Requested::Pause, limits });
}

async fn a_final_job_is_left_alone(journal: &dyn Journal) {
    let id = created(journal, 10_000).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    for next in [running("copy"), State::Done] {
        journal.save(&id, epoch, &state(next)).await.expect("the owner saves");
    }
    journal.release(&id, epoch).await.expect("the owner releases a job that is done");
    let claim = journal.claim(&id, "host/2", 0).await.err();
    let request = journal.request(&id, &Request::Control(Requested::Cancel)).await.err();
    for refused in [claim, request] {
        assert!(matches!(refused, Some(JournalError::Final { .. })), "{refused:?}");
    }
    journal.amend(&id, &json!({"tidied": true})).await.expect("what it left is tidied up");
    let record = load(journal, &id).await;
    assert_eq!((record.state, record.checkpoint), (State::Done, json!({"tidied": true})));
}

async fn a_record_is_removed_once_its_job_has_ended(journal: &dyn Journal) {
    let id = created(journal, 10_500).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    for next in [running("copy"), State::Failed { error: "the disk is full".to_owned() }] {
        journal.save(&id, epoch, &state(next)).await.expect("the owner saves");
        let refused = journal.remove(&id).await.err();
        assert!(matches!(refused, Some(JournalError::Unfinished { .. })), "{refused:?}");
    }
    journal.save(&id, epoch, &state(State::Cancelled)).await.expect("the owner saves");
    journal.release(&id, epoch).await.expect("the owner releases");
    journal.remove(&id).await.expect("its record is removed");
    let listed = journal.list().await.expect("the records are listed");
    assert!(listed.iter().all(|record| record.id != id), "it is listed still");
    for unknown in [journal.remove(&id).await.err(), journal.load(&id).await.err()] {
        assert!(matches!(unknown, Some(JournalError::Unknown { .. })), "{unknown:?}");
    }
}

async fn of_many_claims_at_once_one_is_granted(journal: &dyn Journal) {
    let id = created(journal, 11_000).await.id;
    let claim = async || journal.claim(&id, "host/1", NEVER).await;
    let (a, b, c, d) = tokio::join!(claim(), claim(), claim(), claim());
    let granted = [&a, &b, &c, &d].iter().filter(|claim| claim.is_ok()).count();
    assert_eq!(granted, 1, "{a:?} {b:?} {c:?} {d:?}");
}

async fn a_save_and_a_request_at_once_lose_nothing(journal: &dyn Journal) {
    let id = created(journal, 12_000).await.id;
    let epoch = claimed(journal, &id, NEVER).await;
    for round in 1..=20_u64 {
        let update = Update { checkpoint: Some(json!(round)), ..Update::default() };
        let limits = Limits { documents_s: Some(round), ..Limits::default() };
        let request = Request::Limits(limits);
        let (saved, requested) =
            tokio::join!(journal.save(&id, epoch, &update), journal.request(&id, &request));
        saved.expect("the owner saves");
        requested.expect("the operator requests");
        let record = load(journal, &id).await;
        assert_eq!((record.checkpoint, record.limits), (json!(round), limits), "round {round}");
    }
}
