//! The read-modify-writes of the comparison with PostgreSQL, as a Lua script of one Redis server that acknowledges a
//! write when the disk has it (`appendfsync always`). Redis's own benchmark loads it.
//!
//! Invariant: a measurement counts only if the rows have every acknowledged increment afterwards.

use std::process::{Command, Stdio};

use super::redis::{Absent, Server};
use crate::error::{Error, Result, process};

/// Adds one to the counts of the three rows of a user. A row is a string that begins with its count, eight digits.
const COUNT_UP: &str = "local counted = 0 \
    for place = 0, 2 do \
        local key = KEYS[1] .. ':' .. place \
        local row = redis.call('GET', key) \
        counted = tonumber(string.sub(row, 1, 8)) + 1 \
        redis.call('SET', key, string.format('%08d', counted) .. string.sub(row, 9)) \
    end \
    return counted";
/// Writes the rows of the users from `ARGV[1]` up to `ARGV[2]`, the latter excluded, with a count of 0, and returns 0.
/// The names of users are those that `redis-benchmark` draws.
const FILL: &str = "for user = ARGV[1], ARGV[2] - 1 do \
        for place = 0, 2 do \
            redis.call('SET', string.format('user%012d:%d', user, place), '00000000' .. string.rep('x', 92)) \
        end \
    end \
    return 0";
/// Returns the sum of the counts of the rows of such users.
const SUM: &str = "local sum = 0 \
    for user = ARGV[1], ARGV[2] - 1 do \
        for place = 0, 2 do \
            sum = sum + tonumber(string.sub(redis.call('GET', string.format('user%012d:%d', user, place)), 1, 8)) \
        end \
    end \
    return sum";
/// Number of users whose rows one script writes or reads.
const USERS_AT_ONCE: u32 = 10_000;

/// A Redis server that has the rows and the script.
pub(super) struct RedisScript {
    server: Server,
    users: u32,
    sessions: u32,
    /// SHA-1 of the script, by which Redis knows it.
    script: String,
    _folder: tempfile::TempDir,
}

impl RedisScript {
    /// Starts a server with the rows of `users` users, which `sessions` connections will load.
    pub(super) fn start(users: u32, sessions: u32) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(process("make a folder"))?;
        let data = folder.path().display().to_string();
        let durable = ["--dir", &data, "--appendonly", "yes", "--appendfsync", "always"];
        let server = Server::redis(&durable).map_err(Absent::required)?;
        let mut redis = Self { server, users, sessions, script: String::new(), _folder: folder };
        redis.for_all_users(FILL)?;
        redis.script = redis.ask(&["SCRIPT", "LOAD", COUNT_UP])?;
        Ok(redis)
    }

    /// Runs a script for all users, and returns the sum of its replies, which are numbers.
    fn for_all_users(&self, script: &str) -> Result<u64> {
        let mut sum = 0;
        for from in (0..self.users).step_by(USERS_AT_ONCE as usize) {
            let end = from.saturating_add(USERS_AT_ONCE).min(self.users);
            let reply = self.ask(&["EVAL", script, "0", &from.to_string(), &end.to_string()])?;
            let number = reply.parse::<u64>();
            sum += number.map_err(|_| Error::Wrong(format!("Redis answered {reply:?}")))?;
        }
        Ok(sum)
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("redis-cli");
        command.args(["-e", "-p", &self.server.port.to_string()]).args(words);
        let output = command.stdin(Stdio::null()).output().map_err(process("start redis-cli"))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if output.status.success() {
            return Ok(said);
        }
        Err(Error::Ended {
            what: format!("redis-cli {}", words[0]),
            status: output.status.to_string(),
            wanted: "success".into(),
            said: format!("{said}{}", String::from_utf8_lossy(&output.stderr)),
        })
    }

    /// Runs this many transactions. Returns how many there were per second, and per second of the server's CPU time.
    pub(super) fn measure(&self, transactions: u64) -> Result<(f64, f64)> {
        let counts_before = self.for_all_users(SUM)?;
        let (users, sessions) = (self.users.to_string(), self.sessions.to_string());
        let options = ["-r", &users, "-c", &sessions];
        let call = ["EVALSHA", &self.script, "1", "user__rand_int__"];
        let measured =
            self.server.measure(transactions, &options, &call).map_err(Absent::required)?;
        let counted = self.for_all_users(SUM)? - counts_before;
        if counted != 3 * transactions {
            let wanted = 3 * transactions;
            return Err(Error::Wrong(format!("Redis counts {counted} increments of {wanted}")));
        }
        Ok(measured)
    }
}
