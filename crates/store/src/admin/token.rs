//! Access control of the administration interface by a token, sent as `Authorization: Bearer TOKEN`.
//!
//! The time of a refusal does not reveal how many characters of a wrong token are correct.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::text;

/// An access token of the administration interface.
#[derive(Clone)]
pub struct Token(String);

/// The error of a text that is not valid as a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is one word of visible ASCII characters")]
pub struct InvalidToken;

impl Token {
    /// Returns a token with this text.
    ///
    /// # Errors
    /// Returns an error if the text is empty, or is not a single word of visible ASCII characters.
    pub fn new(text: &str) -> Result<Self, InvalidToken> {
        let is_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_word.then(|| Self(text.to_owned())).ok_or(InvalidToken)
    }

    /// Returns the value of the `Authorization` header that carries this token.
    #[must_use]
    pub fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Checks that a request's headers carry this token; the error is the text of the refusal.
    fn check(&self, headers: &HeaderMap) -> Result<(), &'static str> {
        let said = headers.get(header::AUTHORIZATION).map(header::HeaderValue::as_bytes);
        let token = said.and_then(|said| match said.split_at_checked("Bearer ".len())? {
            (scheme, token) if scheme.eq_ignore_ascii_case(b"Bearer ") => Some(token),
            _ => None,
        });
        let token = token.ok_or("a token is required: Authorization: Bearer TOKEN")?;
        let is_it = bool::from(self.0.as_bytes().ct_eq(token));
        is_it.then_some(()).ok_or("the token is not that of this store")
    }
}

/// Lets requests pass that carry the token, and answers others with status 401.
pub(super) async fn guard(State(token): State<Token>, request: Request, next: Next) -> Response {
    match token.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(why) => {
            let scheme = [(header::WWW_AUTHENTICATE, "Bearer")];
            let answer: (_, _, Json<serde_json::Value>) =
                (StatusCode::UNAUTHORIZED, scheme, text(&why));
            answer.into_response()
        }
    }
}
