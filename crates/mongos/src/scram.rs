//! SCRAM-SHA-256 (RFC 5802, RFC 7677), client and server.
//!
//! The router is a server for its clients and a client of the nodes. It can be both because the testbed created the
//! users and knows their passwords. The commands of each client run on connections of the same user, so that the
//! servers themselves check the user's privileges.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::answer::{Failure, code};
use crate::User;

/// Name of the only login mechanism that the router offers and uses.
pub(super) const MECHANISM: &str = "SCRAM-SHA-256";
const ITERATIONS: u32 = 15_000;
/// Least iteration count of a server that the router accepts: with fewer a false server would learn too much (RFC
/// 7677, 4).
const ITERATIONS_MIN: u32 = 4_096;
/// Largest iteration count of a server that the router accepts: with more a false server could keep this machine
/// busy.
const ITERATIONS_MAX: u32 = 1_000_000;

type Hash = [u8; 32];

/// Keys derived from a user's password and a salt (RFC 5802, 3).
#[derive(Debug, Clone, Copy)]
struct Keys {
    client: Hash,
    stored: Hash,
    server: Hash,
}

impl Keys {
    fn derive(password: &str, salt: &[u8], iterations: u32) -> Self {
        let mut salted = [0; 32];
        pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), salt, iterations, &mut salted);
        let client = mac(&salted, b"Client Key");
        Self { client, stored: Sha256::digest(client).into(), server: mac(&salted, b"Server Key") }
    }
}

/// Cache of derived keys: one derivation takes thousands of hashes, and the nodes' salts never change.
#[derive(Debug, Default)]
pub(super) struct KeyCache(Mutex<HashMap<Derivation, Keys>>);

/// Key of the cache: name of the user, salt, iteration count.
type Derivation = (String, Vec<u8>, u32);

impl KeyCache {
    fn get(&self, login: &User, salt: &[u8], iterations: u32) -> Keys {
        let key = (login.name.clone(), salt.to_vec(), iterations);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        known.unwrap_or_else(|| {
            let keys = Keys::derive(&login.password, salt, iterations);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, keys);
            keys
        })
    }
}

/// State of a login at a node after the client's first message and before the node's challenge.
pub(super) struct ClientExchange {
    login: Arc<User>,
    nonce: String,
}

/// State of a login at a node after the node's challenge: the client's proof and the expected proof of the node.
pub(super) struct ClientProof {
    message: String,
    signature: Hash,
}

impl ClientExchange {
    pub(super) fn start(login: &Arc<User>) -> Result<Self, Failure> {
        Ok(Self { login: Arc::clone(login), nonce: nonce() })
    }

    fn first_bare(&self) -> String {
        format!("n={},r={}", escape(&self.login.name), self.nonce)
    }

    pub(super) fn first(&self) -> Bson {
        binary(format!("n,,{}", self.first_bare()))
    }

    pub(super) fn answer(self, challenge: &str, cache: &KeyCache) -> Result<ClientProof, Failure> {
        let field = |name| attribute(challenge, name).ok_or_else(|| refused("broken challenge"));
        let (joint, salt) = (field('r')?, field('s')?);
        let salt = BASE64.decode(salt).map_err(|_| refused("challenge with a broken salt"))?;
        let iterations = field('i')?.parse().map_err(|_| refused("challenge without a count"))?;
        if !joint.starts_with(&self.nonce) || joint.len() == self.nonce.len() {
            return Err(refused("challenge with a foreign nonce"));
        }
        if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
            return Err(refused("challenge with an unreasonable count"));
        }
        let keys = cache.get(&self.login, &salt, iterations);
        let without_proof = format!("c=biws,r={joint}");
        let auth = format!("{},{challenge},{without_proof}", self.first_bare());
        let proof = xor(keys.client, mac(&keys.stored, auth.as_bytes()));
        let message = format!("{without_proof},p={}", BASE64.encode(proof));
        Ok(ClientProof { message, signature: mac(&keys.server, auth.as_bytes()) })
    }
}

impl ClientProof {
    pub(super) fn message(&self) -> Bson {
        binary(self.message.clone())
    }

    /// Checks that `outcome`, the node's last message, proves that the node knows the password too.
    pub(super) fn check(&self, outcome: &str) -> Result<(), Failure> {
        let signature = attribute(outcome, 'v').and_then(|text| BASE64.decode(text).ok());
        match signature {
            Some(signature) if signature == self.signature => Ok(()),
            _ => Err(refused("server that does not know the password")),
        }
    }
}

/// State of a client's login at the router between the router's challenge and the client's proof.
#[derive(Debug)]
pub(super) struct ServerExchange {
    user: Arc<User>,
    keys: Keys,
    joint: String,
    auth: String,
}

impl ServerExchange {
    /// Answers `first`, a client's first message, with a challenge for the user in it, who must be one of `users`.
    pub(super) fn challenge(
        first: &str,
        users: &[Arc<User>],
        cache: &KeyCache,
    ) -> Result<(Self, Bson), Failure> {
        let bare = first.splitn(3, ',').nth(2).unwrap_or("");
        let name = attribute(bare, 'n').map(unescape);
        let theirs = attribute(bare, 'r').filter(|nonce| !nonce.is_empty());
        let user = users.iter().find(|user| Some(&user.name) == name.as_ref());
        // An unknown user gets the same message as a wrong password.
        let (Some(user), Some(theirs)) = (user, theirs) else { return Err(denied()) };
        // The salt only has to differ between users.
        let salt = &Sha256::digest(format!("imago-testbed-router {}", user.name))[..28];
        let keys = cache.get(user, salt, ITERATIONS);
        let joint = format!("{theirs}{}", nonce());
        let challenge = format!("r={joint},s={},i={ITERATIONS}", BASE64.encode(salt));
        let auth = format!("{bare},{challenge},c={},r={joint}", channel_of(first));
        Ok((Self { user: Arc::clone(user), keys, joint, auth }, binary(challenge)))
    }

    /// Checks the proof in `last`, the client's last message. Returns the user, and the router's own proof for the
    /// client.
    pub(super) fn verify(self, last: &str) -> Result<(Arc<User>, Bson), Failure> {
        let proof = attribute(last, 'p').and_then(|text| BASE64.decode(text).ok());
        let proof = proof.and_then(|proof| Hash::try_from(proof).ok()).ok_or_else(denied)?;
        if attribute(last, 'r') != Some(&*self.joint) {
            return Err(denied());
        }
        let client = xor(proof, mac(&self.keys.stored, self.auth.as_bytes()));
        if Hash::from(Sha256::digest(client)) != self.keys.stored {
            return Err(denied());
        }
        let signature = BASE64.encode(mac(&self.keys.server, self.auth.as_bytes()));
        Ok((self.user, binary(format!("v={signature}"))))
    }
}

/// Returns the channel binding (base64) that the client's last message must repeat: the header of its message
/// `first`.
fn channel_of(first: &str) -> String {
    let header: String = first.splitn(3, ',').take(2).map(|part| format!("{part},")).collect();
    BASE64.encode(header)
}

/// Returns the text of the field `payload` of `step`, one command or reply of a login.
pub(super) fn payload(step: &Document) -> Result<&str, Failure> {
    match step.get("payload") {
        Some(Bson::Binary(binary)) => {
            std::str::from_utf8(&binary.bytes).map_err(|_| refused("message that is not text"))
        }
        Some(Bson::String(text)) => Ok(text),
        _ => Err(refused("step without a message")),
    }
}

fn binary(text: String) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: text.into_bytes() })
}

fn attribute(message: &str, name: char) -> Option<&str> {
    message.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}

fn escape(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

fn unescape(name: &str) -> String {
    name.replace("=2C", ",").replace("=3D", "=")
}

fn mac(key: &[u8], message: &[u8]) -> Hash {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn xor(mut left: Hash, right: Hash) -> Hash {
    for (left, right) in left.iter_mut().zip(right) {
        *left ^= right;
    }
    left
}

fn nonce() -> String {
    format!("{}{}", bson::Uuid::new(), bson::Uuid::new())
}

fn refused(what: &str) -> Failure {
    Failure::new(code::AUTHENTICATION_FAILED, format!("Authentication failed: {what}"))
}

fn denied() -> Failure {
    Failure::new(code::AUTHENTICATION_FAILED, "Authentication failed.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(name: &str, password: &str) -> Arc<User> {
        Arc::new(User { name: name.into(), password: password.into() })
    }

    fn text(message: &Bson) -> String {
        match message {
            Bson::Binary(binary) => String::from_utf8(binary.bytes.clone()).unwrap(),
            other => panic!("{other}"),
        }
    }

    fn converse(client: &Arc<User>, users: &[Arc<User>]) -> Result<String, Failure> {
        let cache = KeyCache::default();
        let exchange = ClientExchange::start(client)?;
        let first = text(&exchange.first());
        let (server, challenge) = ServerExchange::challenge(&first, users, &cache)?;
        let proof = exchange.answer(&text(&challenge), &KeyCache::default())?;
        let (user, outcome) = server.verify(&text(&proof.message()))?;
        proof.check(&text(&outcome))?;
        Ok(user.name.clone())
    }

    #[test]
    fn the_keys_are_those_of_the_example_in_rfc_7677() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let nonce = "rOprNGfwEbeRWgbNEkqO".to_owned();
        let exchange = ClientExchange { login: login("user", "pencil"), nonce };
        let challenge = format!(
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s={},i=4096",
            BASE64.encode(salt)
        );
        let proof = exchange.answer(&challenge, &KeyCache::default()).unwrap();
        assert!(proof.message.ends_with("p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="));
        proof.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").unwrap();
    }

    #[test]
    fn the_two_sides_agree_on_a_name_that_needs_escaping() {
        let user = login("a,b=c", "secret");
        assert_eq!(converse(&user, &[login("x", "y"), user.clone()]).unwrap(), "a,b=c");
    }

    #[test]
    fn a_wrong_password_and_an_unknown_user_are_refused_in_the_same_words() {
        let users = [login("app", "right")];
        let wrong = converse(&login("app", "wrong"), &users).unwrap_err();
        let unknown = converse(&login("stranger", "right"), &users).unwrap_err();
        assert_eq!(wrong.body(), unknown.body());
    }
}
