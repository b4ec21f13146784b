//! Secrets of a store, which are read from files, since other users of the machine can read a command line.

use std::path::Path;

use imago_store::admin::Token;

use crate::exit::{Exit, Failure};

/// Reads a secret from a file, without the line break at its end. `code` and `what` identify the secret in an error:
/// the code for programs, and its name.
pub fn read(file: &Path, code: &'static str, what: &str) -> Result<String, Failure> {
    let read = std::fs::read_to_string(file).map_err(|cause| {
        let message = format!("cannot read the {what} in {}", file.display());
        Failure::new(Exit::Usage, code, message).because(&cause)
    })?;
    let secret = read.trim_end_matches(['\r', '\n']);
    if secret.is_empty() {
        let message = format!("there is no {what} in {}", file.display());
        return Err(Failure::new(Exit::Usage, code, message));
    }
    Ok(secret.to_owned())
}

/// Reads the token that protects the store's admin address from a file.
pub fn token(file: &Path) -> Result<Token, Failure> {
    let text = read(file, "token_file", "token")?;
    Token::new(&text).map_err(|cause| {
        let message = format!("the content of {} is not a valid token", file.display());
        Failure::new(Exit::Usage, "token_file", message).because(&cause)
    })
}
