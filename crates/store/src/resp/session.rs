//! The state of a connection: its user, its database, and its protocol version; and the commands that read or
//! change only that state.
//!
//! Such a command is a function of its arguments and of the session. So EXEC can run the command on a copy of the
//! session, which replaces the session only if the transaction happens.

use subtle::{Choice, ConstantTimeEq};

use super::answer::{Answer, NOT_AN_INTEGER, Protocol, SYNTAX, cut};
use super::parse::Arguments;
use super::{DATABASES, Settings, number};
use crate::key::Table;

/// The session of a connection: its user, database and protocol version, and facts that CLIENT INFO shows.
#[derive(Clone)]
pub(super) struct Session {
    /// The connection's number, which no other connection has.
    pub id: u64,
    pub protocol: Protocol,
    /// The table of the selected database.
    pub database: Table,
    pub is_authenticated: bool,
    /// Number of queued commands, or `None` outside MULTI; and number of watched keys.
    pub queued: Option<usize>,
    pub watched: usize,
    /// Memory that the connection's parser uses, in bytes; and number of received bytes that are not parsed yet.
    pub buffer_bytes: usize,
    pub pending_bytes: usize,
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
}

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const UNNAMEABLE: &str = "ERR Client names cannot contain spaces, newlines or special characters.";
/// Maximum length in bytes of the name that a client gives itself or its library, and of the library's version.
const NAME_BYTES_MAX: usize = 1024;
/// The name of the only user that can authenticate.
const USER: &[u8] = b"default";

impl Session {
    pub fn new(settings: &Settings, id: u64) -> Self {
        Self {
            id,
            protocol: Protocol::Two,
            database: Table(0),
            is_authenticated: settings.passwords.is_empty(),
            queued: None,
            watched: 0,
            buffer_bytes: 0,
            pending_bytes: 0,
            name: Vec::new(),
            library: Vec::new(),
            library_version: Vec::new(),
        }
    }

    /// Restores the initial state of the session, except the name and version of the client's library.
    pub fn reset(&mut self, settings: &Settings) {
        let (library, library_version) = (self.library.clone(), self.library_version.clone());
        *self = Self { library, library_version, ..Self::new(settings, self.id) };
    }

    /// Checks a user and a password, and authenticates the session if they are correct. Returns whether they are.
    fn authenticate(&mut self, settings: &Settings, user: &[u8], password: &[u8]) -> bool {
        // Every password is compared in full, so that the time does not reveal how much of a password is
        // correct.
        let is_right = settings
            .passwords
            .iter()
            .fold(Choice::from(0), |is_right, known| is_right | known.as_bytes().ct_eq(password));
        let is_right = bool::from(is_right) || settings.passwords.is_empty();
        let is_in = is_right && user == USER;
        self.is_authenticated |= is_in;
        is_in
    }

    /// Sets the client's name, or returns an error if the name is invalid.
    fn rename(&mut self, name: &[u8]) -> Result<(), Answer> {
        if !name.iter().all(u8::is_ascii_graphic) {
            return Err(Answer::error(UNNAMEABLE));
        }
        check(name)?;
        self.name = name.to_vec();
        Ok(())
    }

    /// Formats the session as a line of CLIENT INFO and CLIENT LIST. Fields that do not apply or are not known here
    /// are 0, because some clients expect a number.
    fn line(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!(
            "id={} name={} age=0 idle=0 flags={} db={} sub=0 psub=0 ssub=0 multi={} watch={} qbuf={} \
             qbuf-free={} argv-mem=0 multi-mem=0 obl=0 oll=0 omem=0 tot-mem={} events=r cmd=client \
             user=default redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            text(&self.name),
            if self.queued.is_some() { "x" } else { "N" },
            self.database.0,
            self.queued.map_or(-1, |queued| queued as i64),
            self.watched,
            self.pending_bytes,
            self.buffer_bytes.saturating_sub(self.pending_bytes),
            self.buffer_bytes,
            self.protocol.number(),
            text(&self.library),
            text(&self.library_version),
        )
    }
}

/// Returns an error if a name is too long: names are stored, shown, and copied with the session.
fn check(name: &[u8]) -> Result<(), Answer> {
    if name.len() > NAME_BYTES_MAX {
        let text = format!("ERR a name is too long: at most {NAME_BYTES_MAX} bytes");
        return Err(Answer::error(text));
    }
    Ok(())
}

/// A request of a command that concerns the session: its arguments, the session and the settings.
pub(super) struct Call<'c> {
    pub arguments: Arguments<'c>,
    pub session: &'c mut Session,
    pub settings: &'c Settings,
}

/// The type of a function that executes a command of the session, and returns its answer or its error.
pub(super) type Act = fn(Call<'_>) -> Result<Answer, Answer>;

pub(super) fn ping(Call { arguments, .. }: Call<'_>) -> Result<Answer, Answer> {
    match arguments.len() {
        1 => Ok(Answer::status("PONG")),
        2 => Ok(Answer::bulk(arguments.at(1))),
        _ => Err(Answer::error("ERR wrong number of arguments for 'ping' command")),
    }
}

pub(super) fn echo(Call { arguments, .. }: Call<'_>) -> Result<Answer, Answer> {
    Ok(Answer::bulk(arguments.at(1)))
}

pub(super) fn select(Call { arguments, session, .. }: Call<'_>) -> Result<Answer, Answer> {
    let index = number::integer(arguments.at(1)).ok_or_else(|| Answer::error(NOT_AN_INTEGER))?;
    let Ok(index) = i32::try_from(index) else {
        let text = "ERR value is out of range, value must between -2147483648 and 2147483647";
        return Err(Answer::error(text));
    };
    match u32::try_from(index) {
        Ok(index) if index < DATABASES => session.database = Table(index),
        _ => return Err(Answer::error("ERR DB index is out of range")),
    }
    Ok(Answer::OK)
}

pub(super) fn auth(Call { arguments, session, settings }: Call<'_>) -> Result<Answer, Answer> {
    let (user, password) = match arguments.len() {
        2 if settings.passwords.is_empty() => {
            return Err(Answer::error(
                "ERR AUTH <password> called without any password configured for the default user. \
                 Are you sure your configuration is correct?",
            ));
        }
        2 => (USER, arguments.at(1)),
        3 => (arguments.at(1), arguments.at(2)),
        _ => return Err(Answer::error(SYNTAX)),
    };
    if session.authenticate(settings, user, password) {
        Ok(Answer::OK)
    } else {
        Err(Answer::error(WRONG_PASSWORD))
    }
}

pub(super) fn hello(Call { arguments, session, settings }: Call<'_>) -> Result<Answer, Answer> {
    let mut protocol = session.protocol;
    if let Some(version) = arguments.get(1) {
        protocol = match number::integer(version) {
            Some(2) => Protocol::Two,
            Some(3) => Protocol::Three,
            Some(_) => return Err(Answer::error("NOPROTO unsupported protocol version")),
            None => {
                let text = "ERR Protocol version is not an integer or out of range";
                return Err(Answer::error(text));
            }
        };
    }
    // As in Redis, an option takes effect even if a later one is invalid.
    let mut at = 2;
    while let Some(option) = arguments.get(at) {
        match (arguments.get(at + 1), arguments.get(at + 2)) {
            (Some(user), Some(password)) if arguments.is(at, "AUTH") => {
                if !session.authenticate(settings, user, password) {
                    return Err(Answer::error(WRONG_PASSWORD));
                }
                at += 3;
            }
            (Some(name), _) if arguments.is(at, "SETNAME") => {
                session.rename(name)?;
                at += 2;
            }
            _ => {
                let text = [b"ERR Syntax error in HELLO option '", cut(option, 128), b"'"].concat();
                return Err(Answer::error(text));
            }
        }
    }
    if !session.is_authenticated {
        return Err(Answer::error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
             AUTH <user> <pass> option can be used to authenticate the client and select the \
             RESP protocol version at the same time",
        ));
    }
    session.protocol = protocol;
    let text = |text: &str| Answer::bulk(text);
    Ok(Answer::Map(vec![
        (text("server"), text("redis")),
        (text("version"), text(&settings.redis_version)),
        (text("proto"), Answer::Integer(protocol.number())),
        (text("id"), Answer::Integer(session.id as i64)),
        (text("mode"), text("standalone")),
        (text("role"), text("master")),
        (text("modules"), Answer::Array(Vec::new())),
    ]))
}

pub(super) mod client {
    //! CLIENT and its subcommands.

    use super::*;

    pub fn id(Call { session, .. }: Call<'_>) -> Result<Answer, Answer> {
        Ok(Answer::Integer(session.id as i64))
    }

    pub fn name(Call { session, .. }: Call<'_>) -> Result<Answer, Answer> {
        let name = &session.name;
        Ok(if name.is_empty() { Answer::Nil } else { Answer::bulk(name) })
    }

    pub fn rename(Call { arguments, session, .. }: Call<'_>) -> Result<Answer, Answer> {
        session.rename(arguments.at(2))?;
        Ok(Answer::OK)
    }

    pub fn library(Call { arguments, session, .. }: Call<'_>) -> Result<Answer, Answer> {
        let (option, value) = (arguments.at(2), arguments.at(3));
        let place = if arguments.is(2, "lib-name") {
            &mut session.library
        } else if arguments.is(2, "lib-ver") {
            &mut session.library_version
        } else {
            let text = [b"ERR Unrecognized option '", option, b"'"].concat();
            return Err(Answer::error(text));
        };
        if !value.iter().all(u8::is_ascii_graphic) {
            let end = b" cannot contain spaces, newlines or special characters.";
            return Err(Answer::error([b"ERR ", option, end].concat()));
        }
        check(value)?;
        *place = value.to_vec();
        Ok(Answer::OK)
    }

    pub fn info(Call { session, .. }: Call<'_>) -> Result<Answer, Answer> {
        Ok(Answer::Text(session.line() + "\n"))
    }

    /// Executes CLIENT LIST, and returns at most one line: a connection only knows itself.
    pub fn list(Call { arguments, session, .. }: Call<'_>) -> Result<Answer, Answer> {
        let is_in = match (arguments.len(), arguments.get(3)) {
            (2, _) => true,
            (4, Some(kind)) if arguments.is(2, "TYPE") => kind.eq_ignore_ascii_case(b"normal"),
            (_, Some(_)) if arguments.is(2, "ID") => {
                arguments.from(3).any(|id| number::integer(id) == Some(session.id as i64))
            }
            _ => return Err(Answer::error(SYNTAX)),
        };
        Ok(Answer::Text(if is_in { session.line() + "\n" } else { String::new() }))
    }

    /// Accepts a subcommand with ON or OFF without effect: it concerns features that Imago does not have.
    pub fn accept_and_ignore(Call { arguments, .. }: Call<'_>) -> Result<Answer, Answer> {
        if arguments.is(2, "ON") || arguments.is(2, "OFF") {
            Ok(Answer::OK)
        } else {
            Err(Answer::error(SYNTAX))
        }
    }
}
