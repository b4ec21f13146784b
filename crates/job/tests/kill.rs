//! kill -9 of a process that saves, at random moments: what it was answered is there, nothing is
//! half there, and another process can claim and go on.
//!
//! This test is a process of its own, which starts itself again as the one that is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use imago_job::file::FileJournal;
use imago_job::journal::{Journal, Update};
use imago_job::{JobId, Record};
use serde_json::{Value, json};

const ROUNDS: u64 = 25;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, mode, directory, id] = words.as_slice()
        && mode == "save-for-ever"
    {
        return save_for_ever(directory, &id.parse().expect("a job id")).await;
    }
    what_was_answered_survives_kill().await;
}

/// Claims the job and saves ever higher numbers; says each one that was answered.
async fn save_for_ever(directory: &str, id: &JobId) {
    let journal = FileJournal::open(directory).expect("the directory is there");
    let claimed = journal.claim(id, "child", 0).await.expect("claimed");
    let first = claimed.record.checkpoint["number"].as_u64().unwrap_or(0);
    for number in first + 1.. {
        // Padding of changing size, so that a half-written record would be seen.
        let padding = "x".repeat((number as usize * 97) % 20_000);
        let checkpoint = json!({ "number": number, "padding": padding });
        let update = Update { checkpoint: Some(checkpoint), ..Update::default() };
        journal.save(id, claimed.epoch, &update).await.expect("saved");
        writeln!(std::io::stdout(), "{number}").expect("the parent reads");
    }
}

async fn what_was_answered_survives_kill() {
    let directory = tempfile::tempdir().expect("a directory");
    let journal = FileJournal::open(directory.path()).expect("a journal");
    let record = Record::new("kill", Value::Null, 1);
    journal.create(&record).await.expect("created");
    let mut saved = 0;
    for round in 1..=ROUNDS {
        let mut child = Killed::start(directory.path(), &record.id);
        // At least one answer, then a moment that is different in each round.
        let mut answered = child.next().expect("the child saves");
        std::thread::sleep(Duration::from_micros(round * 613 % 9_000));
        answered = child.kill().into_iter().fold(answered, u64::max);

        let after = journal.load(&record.id).await.expect("a whole record");
        let number = after.checkpoint["number"].as_u64().expect("a number");
        let padding = after.checkpoint["padding"].as_str().expect("padding").len();
        assert!(number >= answered, "round {round}: answered {answered}, kept {number}");
        assert!(number > saved, "round {round}: went back from {saved} to {number}");
        assert_eq!(padding, (number as usize * 97) % 20_000, "round {round}: half a record");
        assert_eq!(after.epoch, round, "round {round}: a claim was lost");
        saved = number;
    }
    let epoch = journal.claim(&record.id, "parent", 0).await.expect("no lock remains").epoch;
    assert_eq!(epoch, ROUNDS + 1);
}

/// The process that is killed, also when the test panics.
struct Killed {
    process: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Killed {
    fn start(directory: &std::path::Path, id: &JobId) -> Self {
        let mut process = Command::new(std::env::current_exe().expect("this test has a file"))
            .arg("save-for-ever")
            .arg(directory)
            .arg(id.as_str())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test starts itself");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, lines }
    }

    fn next(&mut self) -> Option<u64> {
        self.lines.next()?.ok()?.parse().ok()
    }

    /// Kills the process and gives what it was still answered.
    fn kill(mut self) -> Vec<u64> {
        self.process.kill().expect("the child is killed");
        self.process.wait().expect("the child is gone");
        std::iter::from_fn(|| self.next()).collect()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // Fails only when it is gone already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
