//! The effective configuration that a Redis server has after its next start: its file, the files that it includes,
//! and its command line.
//!
//! The evaluation follows `config.c` of Redis 7: line by line, an `include` at its place, the command line last. If
//! there are several lines of a setting, the last one applies, except that lines of `save` accumulate. A relative path
//! starts in the server's working directory, or in that of the last `dir` before.
//!
//! Invariant: this module does no I/O; it requests the files that it needs by [`Unknown::Files`].

use std::collections::BTreeMap;
use std::fmt;

use super::words::split;

/// Maximum nesting of included files: the server itself has no limit, and crashes.
const DEPTH_MAX: usize = 16;
/// Characters that make the path of an `include` a pattern.
const WILD: [char; 3] = ['*', '?', '['];

/// Position of a line that sets something in a server's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Place {
    /// The line is in the file of this path, and has this number; the first line is 1.
    File(String, usize),
    /// The line is an argument on the server's command line.
    CommandLine,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{path}, line {line}"),
            Self::CommandLine => f.write_str("its command line"),
        }
    }
}

/// The effective value of a setting, and the line that sets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) struct Set {
    /// Words of the value, separated by blanks.
    pub(in crate::redis) value: String,
    /// Position of the last line that sets the value.
    pub(in crate::redis) place: Place,
}

/// The effective configuration of a server after its next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::redis) struct Effective {
    /// Effective values of the settings that any line sets, by their present name.
    settings: BTreeMap<String, Set>,
    /// Users that lines define, and modules that lines load, by name, with the positions of their lines.
    users: Vec<(String, Place)>,
    modules: Vec<(String, Place)>,
}

/// Reason why a server's configuration cannot be evaluated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Unknown {
    /// The files of this path or pattern are included, and must be read first.
    Files(String),
    /// The server would not start because of the line at this position, which has this problem.
    Invalid(Place, String),
    /// The `include` at this position has this relative path, and the working directory is unknown.
    Relative(Place, String),
}

/// Files and command-line arguments from which a server's configuration is evaluated.
#[derive(Clone, Debug, Default)]
pub(in crate::redis) struct Sources {
    /// Path of the server's own configuration file.
    pub(in crate::redis) path: String,
    /// Working directory of the server when it starts; None if unknown.
    pub(in crate::redis) folder: Option<String>,
    /// Command-line arguments after the file's path, as the words of lines of a configuration file.
    pub(in crate::redis) arguments: Vec<Vec<String>>,
    /// Path and text of each included file, by the path or pattern of the `include`.
    pub(in crate::redis) included: BTreeMap<String, Vec<(String, String)>>,
}

/// Returns the present name, in lower case, of the setting with this present or former name.
pub(super) fn canonical(name: &str) -> String {
    let name = name.to_ascii_lowercase().replace("slave", "replica");
    if name.contains("-max-ziplist-") { name.replace("ziplist", "listpack") } else { name }
}

impl Effective {
    /// Evaluates the configuration of a server whose own file has this text; the error names the missing file or the
    /// invalid line.
    pub(in crate::redis) fn of(sources: &Sources, text: &str) -> Result<Self, Unknown> {
        let mut reader = Reader {
            sources,
            folder: sources.folder.clone(),
            found: Self::default(),
            has_saves: false,
        };
        reader.file(&sources.path, text, 0)?;
        for words in &sources.arguments {
            reader.line(Place::CommandLine, words, 0)?;
        }
        let found = reader.found;
        if !found.settings.contains_key("aclfile") {
            for (number, (user, place)) in found.users.iter().enumerate() {
                if let Some((_, first)) =
                    found.users[..number].iter().find(|(other, _)| other == user)
                {
                    let problem = format!("user {user} is there twice, first in {first}");
                    return Err(Unknown::Invalid(place.clone(), problem));
                }
            }
        }
        Ok(found)
    }

    /// Returns the effective value of a setting; None if no line sets it.
    pub(in crate::redis) fn get(&self, name: &str) -> Option<&Set> {
        self.settings.get(name)
    }

    /// Returns true if any line loads a module.
    pub(in crate::redis) fn loads_modules(&self) -> bool {
        !self.modules.is_empty()
    }

    /// Returns the first `user` or `loadmodule` line that `CONFIG REWRITE` would duplicate, so that the server would
    /// not start: it writes all users and modules to the server's own file (`own`), including those of other files
    /// (redis 11736). None if there is no such line.
    pub(in crate::redis) fn doubled_by_rewrite(&self, own: &str) -> Option<(&'static str, &Place)> {
        let users = self.users.iter().filter(|_| !self.settings.contains_key("aclfile"));
        let all = users
            .map(|one| ("user", &one.1))
            .chain(self.modules.iter().map(|one| ("loadmodule", &one.1)));
        all.into_iter().find(|(_, place)| !matches!(place, Place::File(path, _) if path == own))
    }
}

/// Evaluation of a server's configuration, line by line.
struct Reader<'s> {
    sources: &'s Sources,
    /// Working directory at the present line; None if unknown.
    folder: Option<String>,
    /// Configuration that the lines so far have set.
    found: Effective,
    /// True if a line `save` was evaluated.
    has_saves: bool,
}

impl Reader<'_> {
    fn file(&mut self, path: &str, text: &str, depth: usize) -> Result<(), Unknown> {
        for (number, line) in (1..).zip(text.split('\n')) {
            let line = line.trim_matches([' ', '\t', '\r', '\n']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = Place::File(path.to_owned(), number);
            let Some(words) = split(line) else {
                return Err(Unknown::Invalid(place, "a quote is not closed".into()));
            };
            self.line(place, &words, depth)?;
        }
        Ok(())
    }

    fn line(&mut self, place: Place, words: &[String], depth: usize) -> Result<(), Unknown> {
        let Some((name, values)) = words.split_first() else { return Ok(()) };
        let name = canonical(name);
        match (&*name, values) {
            ("include", [path]) => return self.include(place, path, depth),
            ("include", _) => {
                return Err(Unknown::Invalid(place, "include takes one path".into()));
            }
            ("dir", [folder]) => {
                self.folder = match folder.starts_with('/') {
                    true => Some(folder.clone()),
                    false => self.folder.as_ref().map(|from| format!("{from}/{folder}")),
                };
            }
            ("user", [user, ..]) => {
                self.found.users.push((user.clone(), place));
                return Ok(());
            }
            ("loadmodule", [module, ..]) => {
                self.found.modules.push((module.clone(), place));
                return Ok(());
            }
            _ => {}
        }
        let mut value = values.join(" ");
        // The first line of `save` replaces the defaults, later ones accumulate.
        if name == "save" && std::mem::replace(&mut self.has_saves, true) && !value.is_empty() {
            let before = self.found.settings.get(&name).map(|set| &*set.value).unwrap_or_default();
            value = format!("{before} {value}").trim_start().to_owned();
        }
        self.found.settings.insert(name, Set { value, place });
        Ok(())
    }

    fn include(&mut self, place: Place, path: &str, depth: usize) -> Result<(), Unknown> {
        if depth >= DEPTH_MAX {
            return Err(Unknown::Invalid(place, format!("{DEPTH_MAX} files include each other")));
        }
        let whole = match (&self.folder, path.starts_with('/')) {
            (_, true) => path.to_owned(),
            (Some(folder), false) => format!("{folder}/{path}"),
            (None, false) => return Err(Unknown::Relative(place, path.to_owned())),
        };
        let sources = self.sources;
        let Some(files) = sources.included.get(&whole) else { return Err(Unknown::Files(whole)) };
        if files.is_empty() && !whole.contains(WILD) {
            return Err(Unknown::Invalid(place, format!("there is no file {whole}")));
        }
        // The files of a pattern are read as if they were one file.
        files.iter().try_for_each(|(path, text)| self.file(path, text, depth + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "/etc/redis/redis.conf";

    fn sources(included: &[(&str, &[(&str, &str)])]) -> Sources {
        let files = |files: &[(&str, &str)]| {
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
        };
        Sources {
            path: OWN.into(),
            included: included.iter().map(|(of, all)| ((*of).to_owned(), files(all))).collect(),
            ..Sources::default()
        }
    }

    fn value(of: &Effective, name: &str) -> String {
        of.get(name).map(|set| format!("{} ({})", set.value, set.place)).unwrap_or_default()
    }

    #[test]
    fn the_last_line_holds_and_an_include_is_read_at_its_place() {
        let limits = ("/etc/redis/limits.conf", "# limits\nmaxmemory 100mb\nHZ 20\n");
        let mut all = sources(&[("/etc/redis/limits.conf", &[limits])]);
        let text =
            "maxmemory 1gb\ninclude /etc/redis/limits.conf\nhz 50\nhash-max-ziplist-value 128\n";
        let told = Effective::of(&all, text).unwrap();
        assert_eq!(value(&told, "maxmemory"), "100mb (/etc/redis/limits.conf, line 2)");
        assert_eq!(value(&told, "hz"), format!("50 ({OWN}, line 3)"));
        assert_eq!(value(&told, "hash-max-listpack-value"), format!("128 ({OWN}, line 4)"));
        all.arguments = vec![vec!["maxmemory".into(), "2gb".into()]];
        assert_eq!(
            value(&Effective::of(&all, text).unwrap(), "maxmemory"),
            "2gb (its command line)"
        );
        let behind =
            Effective::of(&all, "include /etc/redis/limits.conf\nmaxmemory 1gb\n").unwrap();
        assert_eq!(value(&behind, "hz"), "20 (/etc/redis/limits.conf, line 3)");
    }

    #[test]
    fn files_are_asked_for_and_a_pattern_may_have_none() {
        let text = "dir /srv/redis\ninclude conf.d/*.conf\n";
        let of = |all: &Sources| Effective::of(all, text);
        assert_eq!(of(&sources(&[])), Err(Unknown::Files("/srv/redis/conf.d/*.conf".into())));
        assert!(of(&sources(&[("/srv/redis/conf.d/*.conf", &[])])).is_ok());
        let two = [("/srv/redis/conf.d/10.conf", "hz 20"), ("/srv/redis/conf.d/20.conf", "hz 30")];
        let told = of(&sources(&[("/srv/redis/conf.d/*.conf", &two)])).unwrap();
        assert_eq!(value(&told, "hz"), "30 (/srv/redis/conf.d/20.conf, line 1)");
        let mut all = sources(&[("/etc/redis/none.conf", &[])]);
        let missing = Effective::of(&all, "include /etc/redis/none.conf\n").unwrap_err();
        assert!(
            matches!(&missing, Unknown::Invalid(_, what) if what.contains("no file")),
            "{missing:?}"
        );
        let relative = Effective::of(&all, "include none.conf\n").unwrap_err();
        assert_eq!(relative, Unknown::Relative(Place::File(OWN.into(), 1), "none.conf".into()));
        all.folder = Some("/srv".into());
        let asked = Effective::of(&all, "dir redis\ninclude none.conf\n").unwrap_err();
        assert_eq!(asked, Unknown::Files("/srv/redis/none.conf".into()));
    }

    #[test]
    fn files_that_include_each_other_end() {
        let own = ("/etc/redis/own.conf", "include /etc/redis/own.conf\n");
        let all = sources(&[("/etc/redis/own.conf", &[own])]);
        let told = Effective::of(&all, "include /etc/redis/own.conf\n").unwrap_err();
        assert!(matches!(told, Unknown::Invalid(..)), "{told:?}");
    }

    #[test]
    fn saves_add_up_and_an_empty_one_takes_all_away() {
        let save = ("/etc/redis/save.conf", "save 60 10000\n");
        let all = sources(&[("/etc/redis/save.conf", &[save])]);
        let told =
            |text: &str| Effective::of(&all, text).unwrap().get("save").unwrap().value.clone();
        assert_eq!(told("save 3600 1\nsave 300 100\n"), "3600 1 300 100");
        assert_eq!(told("save 3600 1\ninclude /etc/redis/save.conf\n"), "3600 1 60 10000");
        assert_eq!(told("save 3600 1\nsave \"\"\n"), "");
        assert_eq!(told("save \"\"\ninclude /etc/redis/save.conf\n"), "60 10000");
    }

    #[test]
    fn users_are_there_once_and_those_of_other_files_are_found() {
        let users = ("/etc/redis/users.conf", "user alice on nopass ~* +@all\n");
        let all = sources(&[("/etc/redis/users.conf", &[users])]);
        let text = "port 6379\ninclude /etc/redis/users.conf\n";
        let told = Effective::of(&all, text).unwrap();
        let place = Place::File("/etc/redis/users.conf".into(), 1);
        assert_eq!(told.doubled_by_rewrite(OWN), Some(("user", &place)));
        let own = Effective::of(&all, "user bob on nopass\n").unwrap();
        assert_eq!(own.doubled_by_rewrite(OWN), None);
        // As the server would have written it.
        let twice = format!("{text}user alice on nopass ~* +@all\n");
        let invalid = Effective::of(&all, &twice).unwrap_err();
        assert!(
            matches!(&invalid, Unknown::Invalid(_, what) if what.contains("alice")),
            "{invalid:?}"
        );
        let by_file = format!("aclfile /etc/redis/users.acl\n{text}");
        assert_eq!(Effective::of(&all, &by_file).unwrap().doubled_by_rewrite(OWN), None);
        let open = Effective::of(&all, "port 1\nuser \"alice on\n").unwrap_err();
        assert_eq!(
            open,
            Unknown::Invalid(Place::File(OWN.into(), 2), "a quote is not closed".into())
        );
    }
}
