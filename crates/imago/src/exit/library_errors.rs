//! Conversion of the libraries' errors into failures of a verb, each with an exit code and a stable code for
//! programs.

use imago_job::journal::JournalError;
use imago_mongo::error::{Class, Error};

use super::{Exit, Failure};

impl From<Class> for Exit {
    fn from(class: Class) -> Self {
        match class {
            Class::Failed => Exit::Failed,
            Class::Usage => Exit::Usage,
            Class::Precondition => Exit::Precondition,
            Class::Interrupted => Exit::Interrupted,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (exit, code) = cluster_error_code(&error);
        let failure = Self::from_error(exit, code, &error);
        Self { help: error.help(), ..failure }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        let (exit, code) = journal_error_code(&error);
        Self::from_error(exit, code, &error)
    }
}

impl From<imago_bench::error::Error> for Failure {
    fn from(error: imago_bench::error::Error) -> Self {
        use imago_bench::error::Error as Bench;
        let (exit, code) = match &error {
            Bench::Size(_) => (Exit::Usage, "usage"),
            Bench::Testbed(_) => (Exit::Precondition, "testbed"),
            Bench::Namespaces(_) => (Exit::Precondition, "namespaces"),
            _ => (Exit::Failed, "benchmark"),
        };
        Self::from_error(exit, code, &error)
    }
}

fn cluster_error_code(error: &Error) -> (Exit, &'static str) {
    let code = match error {
        Error::Journal(error) => return journal_error_code(error),
        Error::Usage { .. } => "usage",
        Error::Precondition { .. } => "precondition",
        Error::Unreachable { .. } => "unreachable",
        Error::Credentials { .. } => "credentials",
        Error::Server { .. } => "server",
        Error::Transient { .. } => "passing",
        Error::Exhausted { .. } => "exhausted",
        Error::Document { .. } => "document",
        Error::OplogRolledOver { .. } => "oplog_rolled_over",
        Error::PositionRefused { .. } => "position_refused",
        Error::Disrupted { .. } => "disrupted",
        Error::CatalogChanged { .. } => "catalog_changed",
        Error::Superseded { .. } => "superseded",
        Error::Undecided { .. } => "undecided",
        Error::Stopped(_) => "stopped",
        Error::Malformed { .. } => "malformed",
    };
    (error.class().into(), code)
}

fn journal_error_code(error: &JournalError) -> (Exit, &'static str) {
    match error {
        JournalError::Unknown { .. } => (Exit::Usage, "unknown_job"),
        JournalError::Limit(_) => (Exit::Usage, "zero_limit"),
        JournalError::Owned { .. } => (Exit::Precondition, "job_owned"),
        JournalError::Final { .. } => (Exit::Precondition, "job_final"),
        JournalError::Unfinished { .. } => (Exit::Precondition, "job_unfinished"),
        JournalError::Refused { .. } => (Exit::Precondition, "journal_refused"),
        JournalError::Fenced { .. } => (Exit::Interrupted, "job_taken_over"),
        JournalError::Unavailable { .. } => (Exit::Interrupted, "journal_unavailable"),
        JournalError::Exists { .. } => (Exit::Failed, "job_exists"),
        JournalError::Transition { .. } => (Exit::Failed, "job_state"),
        JournalError::Damaged { .. } => (Exit::Failed, "journal_damaged"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imago_job::control::Stop;
    use imago_job::id::JobId;
    use imago_job::state::State;

    fn ends(failure: impl Into<Failure>) -> (u8, String) {
        let json = failure.into().to_json();
        let exit = json["error"]["exit"].as_u64().unwrap();
        (u8::try_from(exit).unwrap(), json["error"]["code"].as_str().unwrap().to_owned())
    }

    #[test]
    fn each_class_has_its_exit_code() {
        assert_eq!(ends(Error::usage("what", "help")), (2, "usage".to_owned()));
        assert_eq!(ends(Error::precondition("what", "help")), (4, "precondition".to_owned()));
        assert_eq!(ends(Error::Stopped(Stop::Interrupted)), (5, "stopped".to_owned()));
        assert_eq!(ends(Error::malformed("doing", "cause")), (1, "malformed".to_owned()));
    }

    #[test]
    fn an_error_of_the_journal_ends_alike_however_it_arrives() {
        let id = JobId::from_parts(0, 0);
        let error = || JournalError::Final { id: id.clone(), state: State::Done };
        assert_eq!(ends(error()), (4, "job_final".to_owned()));
        assert_eq!(ends(Error::from(error())), ends(error()));
    }

    #[test]
    fn what_to_do_is_kept() {
        let failure = Failure::from(Error::precondition("no oplog", "use a replica set"));
        assert_eq!(failure.to_json()["error"]["help"], "use a replica set");
    }

    #[test]
    fn a_cause_that_the_message_quotes_is_not_repeated() {
        let cause = Error::malformed("hello", "no setName");
        let tried = format!("gave up: {cause}");
        let failure = Failure::from(Error::Exhausted { tried, cause: Box::new(cause) });
        assert_eq!(failure.to_json()["error"]["causes"], serde_json::json!([]));
    }
}
