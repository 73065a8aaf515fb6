//! TLS 1.3 on the client's side (RFC 8446), without input and output of its own: rustls says what to send, and takes
//! what came.
//!
//! Every connection makes a full handshake: session resumption and early data are off, and tickets are thrown away.
//! The server's certificate is verified each time: against a CA, with its name and validity, or by its own digest. There
//! is no way to leave that out. A self-signed certificate that calls itself a CA's, as `openssl req -x509` makes it, is
//! pinned: as a server's own it is refused (`CaUsedAsEndEntity`). Older versions of TLS are not spoken. ALPN offers
//! `http/1.1`.

use std::fmt::Write;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use ring::digest::{digest, SHA256};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::{self, verify_tls13_signature, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use virtoll_generator::{sys, Failed};

use crate::spec::TlsSpec;

/// What all connections of a measurement have in common.
#[derive(Clone, Debug)]
pub struct Tls {
    pub config: Arc<ClientConfig>,
    pub name: ServerName<'static>,
}

impl Tls {
    pub fn new(spec: &TlsSpec) -> Result<Self, Failed> {
        let cannot = |why: &str| Failed(format!("the specification's tls: {why}"));
        let name = ServerName::try_from(spec.server_name.clone())
            .map_err(|_| cannot("server_name must be a host's name or an IP address"))?;
        let provider = Arc::new(crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| cannot(&error.to_string()))?;
        let mut config = match (&spec.ca, &spec.pinned) {
            (Some(path), None) => builder.with_root_certificates(roots(path)?),
            (None, Some(digest)) => builder
                .dangerous() // as rustls calls every verifier that is not its own
                .with_custom_certificate_verifier(Arc::new(Pinned {
                    digest: parsed(digest)
                        .ok_or_else(|| cannot("pinned must be 64 hexadecimal digits"))?,
                    algorithms,
                })),
            _ => {
                return Err(cannot(
                    "give either ca or pinned: a certificate is always verified",
                ))
            }
        }
        .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Tls {
            config: Arc::new(config),
            name,
        })
    }
}

/// The certificates of a PEM file.
fn roots(path: &Path) -> Result<RootCertStore, Failed> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failed(format!(
            "cannot use the CA {}: {why}; give a PEM file with at least one certificate",
            path.display()
        ))
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| cannot(&error))? {
        roots
            .add(certificate.map_err(|error| cannot(&error))?)
            .map_err(|error| cannot(&error))?;
    }
    if roots.is_empty() {
        return Err(cannot(&"it holds none"));
    }
    Ok(roots)
}

/// The bytes of a digest in hexadecimal, as `openssl x509 -fingerprint -sha256` has it too, with colons.
fn parsed(digest: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = digest.bytes().filter(|byte| *byte != b':').collect();
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Takes the one certificate with this digest for good, and no other; that the server has its key is verified as ever.
#[derive(Debug)]
struct Pinned {
    digest: [u8; 32],
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest = digest(&SHA256, leaf);
        if digest.as_ref() != self.digest {
            return Err(Error::General(format!(
                "the server's certificate has the SHA-256 digest {}, another than the pinned one",
                hexadecimal(digest.as_ref())
            )));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Why a connection cannot go on.
#[derive(Debug)]
pub enum Broken {
    /// The socket.
    Io(io::Error),
    /// The protocol; says why.
    Tls(String),
}

/// One connection's state.
pub struct Session {
    connection: UnbufferedClientConnection,
    /// What came and is no whole record yet.
    torn: Vec<u8>,
    /// What is to be encrypted as soon as that can be done.
    request: Vec<u8>,
    /// Records to be sent, and how much of them is.
    outgoing: Vec<u8>,
    sent: usize,
    /// Whether anything was ever sent.
    pub has_spoken: bool,
    /// The handshake is done.
    pub is_established: bool,
    /// That has been counted.
    pub is_counted: bool,
    /// The server said that it has no more to say.
    pub is_ended: bool,
}

impl Session {
    /// Begins with a ClientHello to be sent.
    pub fn new(tls: &Tls) -> Result<Self, String> {
        let connection = UnbufferedClientConnection::new(tls.config.clone(), tls.name.clone())
            .map_err(|error| error.to_string())?;
        let mut session = Session {
            connection,
            torn: Vec::new(),
            request: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            has_spoken: false,
            is_established: false,
            is_counted: false,
            is_ended: false,
        };
        session.process(&mut [], |_| ())?;
        Ok(session)
    }

    /// Make ready to send a request, after the handshake.
    pub fn ask(&mut self, request: &[u8]) -> Result<(), String> {
        self.request.extend_from_slice(request);
        if self.is_established {
            let mut torn = std::mem::take(&mut self.torn);
            let taken = self.process(&mut torn, |_| ())?;
            torn.drain(..taken);
            self.torn = torn;
        }
        Ok(())
    }

    /// Send what there is to send, as far as it goes.
    pub fn flush(&mut self, fd: &OwnedFd) -> io::Result<()> {
        while self.sent < self.outgoing.len() {
            match sys::send(fd, &self.outgoing[self.sent..]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
            self.has_spoken = true;
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(())
    }

    /// Read once, show the plain text to `sink`, and send what follows from it. (Bytes read, bytes asked for.)
    pub fn receive(
        &mut self,
        fd: &OwnedFd,
        buffer: &mut [u8],
        sink: impl FnMut(&[u8]),
    ) -> Result<(usize, usize), Broken> {
        self.flush(fd).map_err(Broken::Io)?;
        let before = self.torn.len();
        if before >= buffer.len() {
            return Err(Broken::Tls("a message that does not end".into()));
        }
        let asked = buffer.len() - before;
        let bytes = sys::receive(fd, &mut buffer[before..]).map_err(Broken::Io)?;
        buffer[..before].copy_from_slice(&self.torn);
        let input = &mut buffer[..before + bytes];
        match self.process(input, sink) {
            Ok(taken) => {
                self.torn.clear();
                self.torn.extend_from_slice(&input[taken..]);
                self.flush(fd).map_err(Broken::Io)?;
                Ok((bytes, asked))
            }
            Err(why) => {
                let _ = self.flush(fd); // the alert
                Err(Broken::Tls(why))
            }
        }
    }

    /// Take in what is whole of `input`; how much that is.
    fn process(&mut self, input: &mut [u8], mut sink: impl FnMut(&[u8])) -> Result<usize, String> {
        let mut taken = 0;
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.connection.process_tls_records(&mut input[taken..]);
            let goes_on = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(|error| error.to_string())?;
                        discard += record.discard;
                        sink(record.payload);
                    }
                    true
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let encode = |room: &mut [u8]| {
                        data.encode(room).map_err(|error| match error {
                            EncodeError::InsufficientSize(size) => Some(size.required_size),
                            EncodeError::AlreadyEncoded => None,
                        })
                    };
                    append(&mut self.outgoing, 1024, encode);
                    true
                }
                // It stands in `outgoing`.
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    self.is_established = true;
                    if !self.request.is_empty() {
                        let room_bytes = self.request.len() + 64;
                        let encrypt = |room: &mut [u8]| {
                            traffic
                                .encrypt(&self.request, room)
                                .map_err(|error| match error {
                                    EncryptError::InsufficientSize(size) => {
                                        Some(size.required_size)
                                    }
                                    EncryptError::EncryptExhausted => None,
                                })
                        };
                        append(&mut self.outgoing, room_bytes, encrypt);
                        self.request.clear();
                    }
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.is_ended = true;
                    true
                }
                Ok(_) => false,
                Err(error) => {
                    self.queue_alert();
                    return Err(error.to_string());
                }
            };
            taken += discard;
            if !goes_on {
                return Ok(taken);
            }
        }
    }

    /// After an error: what the server is to be told of it.
    fn queue_alert(&mut self) {
        let status = self.connection.process_tls_records(&mut []);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state {
            append(&mut self.outgoing, 64, |room| {
                data.encode(room).map_err(|_| None)
            });
        }
    }

    /// What was agreed on: cipher suite and key exchange.
    pub fn agreed(&self) -> Option<(String, String)> {
        let suite = self.connection.negotiated_cipher_suite()?;
        let group = self.connection.negotiated_key_exchange_group()?;
        Some((
            format!("{:?}", suite.suite()),
            format!("{:?}", group.name()),
        ))
    }
}

/// Let `fill` write behind what stands in `outgoing`; it says how much it wrote, or how much room it needs.
fn append(
    outgoing: &mut Vec<u8>,
    room_bytes: usize,
    mut fill: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) {
    let before = outgoing.len();
    let mut room_bytes = Some(room_bytes);
    let mut filled = 0;
    while let Some(bytes) = room_bytes.take() {
        outgoing.resize(before + bytes, 0);
        match fill(&mut outgoing[before..]) {
            Ok(bytes) => filled = bytes,
            Err(more) => room_bytes = more.filter(|more| *more > bytes),
        }
    }
    outgoing.truncate(before + filled);
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
