//! A connection to one broker: TCP or TLS, authentication, and one request at a time.
//!
//! Messages are encoded and decoded by `kafka_protocol`, whose code is generated from Kafka's own definitions, and SASL
//! exchanges are those of `rsasl`. Each request is sent in the oldest version that Kafka 4 accepts, which Kafka has
//! since 0.11 (authentication: 1.0).

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{
    CreateTopicsRequest, DescribeConfigsRequest, FetchRequest, MetadataRequest, ProduceRequest,
    RequestHeader, ResponseHeader, SaslAuthenticateRequest, SaslHandshakeRequest,
};
use kafka_protocol::protocol::{
    Decodable, HeaderVersion as _, Request, StrBytes, encode_request_header_into_buffer,
};
use rsasl::prelude::{Mechname, MessageSent, SASLClient, SASLConfig, State};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use super::client_config::{ClientConfig, Sasl};
use super::fault::{Fault, check};

/// Maximum size of a broker's reply, in bytes.
const REPLY_BYTES_MAX: usize = 100 * 1024 * 1024;
/// First bytes of the TLS record by which a listener with TLS rejects an unencrypted request: an alert of version 3.
/// As a length they would exceed [`REPLY_BYTES_MAX`].
const TLS_ALERT: [u8; 2] = [0x15, 3];
/// The client id that requests contain.
const CLIENT: StrBytes = StrBytes::from_static_str("imago");
/// Maximum number of messages that the client sends to authenticate; SCRAM needs two.
const SASL_MESSAGES_MAX: usize = 4;
/// Kafka's error code of a broker that does not offer the requested SASL mechanism.
const MECHANISM_NOT_OFFERED: i16 = 33;
/// Kafka's error code of a broker that rejects a user or a password.
const NOT_AUTHENTICATED: i16 = 58;

/// A request to a broker, with the version of the protocol in which it is sent.
pub(super) trait Versioned: Request {
    /// The protocol version of the request and of its reply.
    const VERSION: i16;
}

macro_rules! versions {
    ($($request:ty = $version:literal),* $(,)?) => {
        $(impl Versioned for $request { const VERSION: i16 = $version; })*
    };
}

versions! {
    ProduceRequest = 3,
    FetchRequest = 4,
    MetadataRequest = 4,
    CreateTopicsRequest = 2,
    DescribeConfigsRequest = 1,
    SaslHandshakeRequest = 1,
    SaslAuthenticateRequest = 0,
}

/// The byte stream to a broker, over TCP with or without TLS.
#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(content),
            Self::Tls(stream) => stream.write(content),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// A connection to a broker, on which one request at a time is sent and its reply awaited.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Correlation id of the last request, with which its reply must begin.
    id: i32,
}

impl Connection {
    /// Connects to the broker at `host:port`, and authenticates if the configuration names a user. Each read and
    /// write fails if the broker is silent for the time `silence`.
    pub(super) fn open(
        address: &str,
        config: &ClientConfig,
        silence: Duration,
    ) -> Result<Self, Fault> {
        let about = |fault: Fault| fault.about(address);
        let tcp = connect(address, silence).map_err(|error| about(error.into()))?;
        let stream = match &config.tls {
            None => Stream::Plain(tcp),
            Some(tls) => Stream::Tls(Box::new(encrypt(tcp, address, tls).map_err(about)?)),
        };
        let mut connection = Self { stream, id: 0 };
        if let Some(sasl) = &config.sasl {
            connection.authenticate(sasl).map_err(about)?;
        }
        Ok(connection)
    }

    /// Sends a request and returns the broker's reply. After a failure, the connection must not be used any more.
    pub(super) fn ask<R: Versioned>(&mut self, request: &R) -> Result<R::Response, Fault> {
        self.id = self.id.wrapping_add(1);
        let header = RequestHeader::default()
            .with_request_api_key(R::KEY)
            .with_request_api_version(R::VERSION)
            .with_correlation_id(self.id)
            .with_client_id(Some(CLIENT));
        let mut message = BytesMut::zeroed(size_of::<i32>());
        encode_request_header_into_buffer(&mut message, &header)
            .and_then(|()| request.encode(&mut message, R::VERSION))
            .map_err(|error| Fault::Lasting(format!("a request cannot be encoded: {error}")))?;
        let length = message.len() - size_of::<i32>();
        let length = i32::try_from(length)
            .map_err(|_| Fault::Lasting(format!("a request of {length} bytes is too large")))?;
        message[..size_of::<i32>()].copy_from_slice(&length.to_be_bytes());
        let sent = self.stream.write_all(&message).and_then(|()| self.stream.flush());
        sent.map_err(|error| self.failed(error))?;

        let mut reply = self.receive()?;
        let header = ResponseHeader::decode(&mut reply, R::Response::header_version(R::VERSION));
        match header {
            Ok(header) if header.correlation_id == self.id => {}
            Ok(_) => return Err(Fault::Lasting("its reply is to another request".into())),
            Err(error) => return Err(undecodable(&error)),
        }
        R::Response::decode(&mut reply, R::VERSION).map_err(|error| undecodable(&error))
    }

    /// Receives a reply, and returns its content without the length in front.
    fn receive(&mut self) -> Result<Bytes, Fault> {
        let mut length = [0; size_of::<i32>()];
        self.stream.read_exact(&mut length).map_err(|error| self.failed(error))?;
        if length.starts_with(&TLS_ALERT) {
            let why = "it demands TLS: set security.protocol in the file of --log-config";
            return Err(Fault::Lasting(why.into()));
        }
        let length = usize::try_from(i32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > REPLY_BYTES_MAX {
            return Err(Fault::Lasting("its reply is too long to be one of Kafka".into()));
        }
        let mut content = vec![0; length];
        self.stream.read_exact(&mut content).map_err(|error| self.failed(error))?;
        Ok(content.into())
    }

    /// Returns the fault of a failed read or write on the connection. A broker that rejects the client's certificate
    /// says so after the handshake.
    fn failed(&self, error: io::Error) -> Fault {
        match (&self.stream, error.kind()) {
            (Stream::Tls(_), io::ErrorKind::InvalidData) => rejected(&error),
            _ => error.into(),
        }
    }

    /// Authenticates as the user `sasl` to the broker.
    fn authenticate(&mut self, sasl: &Sasl) -> Result<(), Fault> {
        let name = sasl.mechanism.name();
        let handshake =
            SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(name));
        let reply = self.ask(&handshake)?;
        if reply.error_code == MECHANISM_NOT_OFFERED {
            let offered: Vec<&str> = reply.mechanisms.iter().map(StrBytes::as_str).collect();
            let offered = offered.join(", ");
            return Err(Fault::Lasting(format!(
                "it does not offer sasl.mechanism={name}, but {offered}"
            )));
        }
        check(reply.error_code)?;

        let unfit = |error: &dyn std::fmt::Display| {
            Fault::Lasting(format!("{name} authentication of user {} failed: {error}", sasl.user))
        };
        let config = SASLConfig::with_credentials(None, sasl.user.clone(), sasl.password.clone());
        let config = config.map_err(|error| unfit(&error))?;
        let mechanism = Mechname::parse(name.as_bytes()).expect("it is a registered name");
        let session = SASLClient::new(config).start_suggested(&[mechanism]);
        let mut session = session.map_err(|error| unfit(&error))?;
        let mut received: Option<Bytes> = None;
        for _ in 0..SASL_MESSAGES_MAX {
            let mut message = Vec::new();
            let state = session.step(received.as_deref(), &mut message);
            let state = state.map_err(|error| unfit(&error))?;
            if matches!(state, State::Finished(MessageSent::No)) {
                return Ok(());
            }
            let reply =
                self.ask(&SaslAuthenticateRequest::default().with_auth_bytes(message.into()))?;
            if reply.error_code == NOT_AUTHENTICATED {
                let why =
                    reply.error_message.as_ref().map_or("no reason is given", StrBytes::as_str);
                return Err(unfit(&why));
            }
            check(reply.error_code)?;
            if !state.is_running() {
                return Ok(());
            }
            received = Some(reply.auth_bytes);
        }
        Err(unfit(&format_args!("it took more than {SASL_MESSAGES_MAX} messages")))
    }
}

/// Connects to the first address of `host:port` that accepts; `silence` limits each attempt, and each read and write.
fn connect(address: &str, silence: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "its name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, silence) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(silence))?;
                stream.set_write_timeout(Some(silence))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Encrypts a connection to the broker at `host:port`, and checks the broker's certificate.
fn encrypt(
    mut tcp: TcpStream,
    address: &str,
    config: &Arc<tokio_rustls::rustls::ClientConfig>,
) -> Result<StreamOwned<ClientConnection, TcpStream>, Fault> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|error| rejected(&error))?;
    let mut tls =
        ClientConnection::new(Arc::clone(config), name).map_err(|error| rejected(&error))?;
    while tls.is_handshaking() {
        tls.complete_io(&mut tcp).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => rejected(&error),
            _ => error.into(),
        })?;
    }
    Ok(StreamOwned::new(tls, tcp))
}

/// Returns the permanent fault of a certificate, of the broker or of the client, that the other side rejects.
fn rejected(error: &dyn std::fmt::Display) -> Fault {
    Fault::Lasting(format!("TLS failed: {error}"))
}

/// Returns the permanent fault of a reply that cannot be decoded.
fn undecodable(error: &dyn std::fmt::Display) -> Fault {
    Fault::Lasting(format!("its reply cannot be decoded: {error}"))
}
