//! Against rustls' own server side: whole measurements over loopback, and what is refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::pki_types::PrivateKeyDer;
use rustls::{
    ConnectionTrafficSecrets, ContentType, ProtocolVersion, ServerConfig, ServerConnection,
    StreamOwned,
};

use super::*;
use crate::spec::HttpSpec;

/// So long whatever is to happen is waited for: on a busy machine it may be minutes until a thread can begin.
const HOUR_NS: i64 = 3_600_000_000_000;

/// A CA, and a certificate of its own for `server.test`, made for one test.
struct Identity {
    ca: PathBuf,
    leaf: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Identity {
    fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut params = CertificateParams::default();
        let common_name = rcgen::DnType::CommonName;
        params
            .distinguished_name
            .push(common_name, format!("CA {number}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&ca_key).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["server.test".to_owned()];
        let leaf = CertificateParams::new(names).unwrap();
        let leaf = leaf.signed_by(&key, &ca, &ca_key).unwrap();
        let name = format!("virtoll-load-{}-{number}.pem", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, ca.pem()).unwrap();
        Identity {
            ca: path,
            leaf: leaf.der().clone(),
            key: key.serialize_der(),
        }
    }

    fn pinned(&self) -> String {
        hexadecimal(digest(&SHA256, &self.leaf).as_ref())
    }

    fn server(&self) -> ServerConfig {
        let key = PrivateKeyDer::Pkcs8(self.key.clone().into());
        ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.leaf.clone()], key)
            .unwrap()
    }

    /// Serve so many connections; each answers until its client has no more to ask.
    fn serve(&self, connections: usize, body: &'static [u8]) -> SocketAddr {
        self.serve_by(connections, move |stream, config| {
            answer_all(stream, config, body);
        })
    }

    fn serve_by(
        &self,
        connections: usize,
        answer: impl Fn(std::net::TcpStream, Arc<ServerConfig>) + Copy + Send + 'static,
    ) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::new(self.server());
        // All threads are there before the first client comes, who waits for none of them to begin.
        for _ in 0..connections {
            let (listener, config) = (listener.try_clone().unwrap(), config.clone());
            thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                drop(listener);
                answer(stream, config);
            });
        }
        address
    }
}

impl Drop for Identity {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.ca);
    }
}

fn answer_all(stream: std::net::TcpStream, config: Arc<ServerConfig>, body: &[u8]) {
    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
    let mut request = [0; 4096];
    loop {
        let bytes = stream.read(&mut request).unwrap_or(0);
        if bytes == 0 {
            return;
        }
        let closes = request[..bytes].windows(5).any(|word| word == b"close");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        let sent = stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body));
        if sent.and_then(|()| stream.flush()).is_err() {
            return;
        }
        if closes {
            stream.conn.send_close_notify();
            let _ = stream.flush();
            return;
        }
    }
}

fn spec(address: SocketAddr, tls: serde_json::Value) -> serde_json::Value {
    serde_json::json!({
        "target": {"address": address.to_string(), "url": "https://server.test/x", "tls": tls},
        "keep_alive": true,
        "threads": 1,
        "loop": {"closed": {"connections": 2, "requests": 10, "time_limit_ns": HOUR_NS}},
        "timeout_ns": HOUR_NS,
        "expect": {"status": 200, "length_bytes": 5},
    })
}

fn run(spec: serde_json::Value) -> Result<serde_json::Value, Failed> {
    let spec: HttpSpec = serde_json::from_value(spec).unwrap();
    let report = crate::measure::run(&spec.checked()?)?;
    Ok(serde_json::to_value(report).unwrap())
}

#[test]
fn a_kept_connection_shakes_hands_once_and_a_fresh_one_each_time() {
    let identity = Identity::new();
    let by_ca = serde_json::json!({"server_name": "server.test", "ca": identity.ca});
    let by_digest = serde_json::json!({"server_name": "other.test", "pinned": identity.pinned()});
    for tls in [by_ca, by_digest] {
        for (keep_alive, connections, handshakes) in
            [(true, 2, 2), (false, 2, 10), (true, 1, 1), (false, 1, 10)]
        {
            let mut spec = spec(identity.serve(handshakes, b"hello"), tls.clone());
            spec["keep_alive"] = keep_alive.into();
            spec["loop"]["closed"]["connections"] = connections.into();
            let report = run(spec).unwrap();
            assert_eq!(report["failures"], serde_json::json!({}), "{report}");
            assert_eq!(
                (&report["completed"], &report["handshakes"]),
                (&10.into(), &handshakes.into())
            );
            assert_eq!(report["connects"], handshakes);
            assert_eq!(report["tls"]["suite"], "TLS13_AES_256_GCM_SHA384");
            assert_eq!(report["tls"]["group"], "X25519");
        }
    }
}

#[test]
fn a_body_of_many_records_is_counted_whole() {
    static BODY: [u8; 3_000_000] = [b'x'; 3_000_000];
    let identity = Identity::new();
    for connections in [1, 2] {
        let tls = serde_json::json!({"server_name": "server.test", "ca": identity.ca});
        let mut spec = spec(identity.serve(connections, &BODY), tls);
        spec["loop"]["closed"]["connections"] = connections.into();
        spec["expect"]["length_bytes"] = BODY.len().into();
        let report = run(spec).unwrap();
        assert_eq!(
            (&report["completed"], &report["handshakes"]),
            (&10.into(), &connections.into()),
            "{report}"
        );
    }
}

#[test]
fn a_kept_connection_whose_server_said_farewell_with_its_answer_is_not_used_again() {
    let identity = Identity::new();
    for connections in [1, 2] {
        let tls = serde_json::json!({"server_name": "server.test", "ca": identity.ca});
        let mut spec = spec(identity.serve_by(10, answer_and_end), tls);
        spec["loop"]["closed"]["connections"] = connections.into();
        let report = run(spec).unwrap();
        assert_eq!(report["failures"], serde_json::json!({}), "{report}");
        assert_eq!(
            (&report["completed"], &report["connects"]),
            (&10.into(), &10.into())
        );
    }
}

/// Answer and close_notify come as one; the connection's end comes when the client has ended it.
fn answer_and_end(mut stream: std::net::TcpStream, config: Arc<ServerConfig>) {
    let mut connection = ServerConnection::new(config).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    let mut request = [0; 4096];
    while connection.reader().read(&mut request).is_err() {
        connection.complete_io(&mut stream).unwrap();
    }
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    connection.writer().write_all(answer).unwrap();
    connection.send_close_notify();
    let mut records = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut records).unwrap();
    }
    stream.write_all(&records).unwrap();
    let _ = stream.read(&mut request);
}

/// One connection, one request, which fails as TLS; the reasons.
fn reasons(address: SocketAddr, tls: serde_json::Value) -> String {
    let mut spec = spec(address, tls);
    spec["loop"] =
        serde_json::json!({"closed": {"connections": 1, "requests": 1, "time_limit_ns": HOUR_NS}});
    let report = run(spec).unwrap();
    assert_eq!(
        report["failures"],
        serde_json::json!({"tls": 1}),
        "{report}"
    );
    assert_eq!(
        (&report["completed"], &report["handshakes"]),
        (&0.into(), &0.into())
    );
    report["tls"]["reasons"].to_string()
}

#[test]
fn a_certificate_that_is_not_the_one_is_refused_and_said() {
    let (identity, other) = (Identity::new(), Identity::new());
    let serve = || identity.serve(1, b"hello");
    let why = reasons(
        serve(),
        serde_json::json!({"server_name": "server.test", "ca": other.ca}),
    );
    assert!(why.contains("UnknownIssuer"), "{why}");
    let why = reasons(
        serve(),
        serde_json::json!({"server_name": "other.test", "ca": identity.ca}),
    );
    assert!(why.contains("not valid for name"), "{why}");
    let why = reasons(
        serve(),
        serde_json::json!({"server_name": "server.test", "pinned": other.pinned()}),
    );
    assert!(why.contains(&identity.pinned()), "{why}");
}

#[test]
fn what_is_no_tls_is_a_failure_of_that_kind() {
    let identity = Identity::new();
    for said in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(said).unwrap();
        });
        let why = reasons(
            address,
            serde_json::json!({"server_name": "server.test", "ca": identity.ca}),
        );
        assert!(
            why.contains(if said.is_empty() {
                "ended within the handshake"
            } else {
                "corrupt"
            }),
            "{why}"
        );
        server.join().unwrap();
    }
}

#[test]
fn a_certificate_is_verified_in_exactly_one_way() {
    let identity = Identity::new();
    let made = |ca: Option<&str>, pinned: Option<String>| {
        Tls::new(&TlsSpec {
            server_name: "server.test".into(),
            ca: ca.map(PathBuf::from),
            pinned,
        })
        .map_err(|Failed(why)| why)
    };
    let ca = identity.ca.to_str();
    assert!(made(ca, None).is_ok() && made(None, Some(identity.pinned())).is_ok());
    for (ca, pinned) in [(None, None), (ca, Some(identity.pinned()))] {
        assert!(made(ca, pinned)
            .unwrap_err()
            .contains("either ca or pinned"));
    }
    assert!(made(None, Some("12:34".into()))
        .unwrap_err()
        .contains("64 hexadecimal"));
    assert!(made(Some("/dev/null"), None)
        .unwrap_err()
        .contains("it holds none"));
    assert!(made(Some("/nowhere"), None)
        .unwrap_err()
        .contains("/nowhere"));
    let with_colons: Vec<String> = (0..32).map(|byte| format!("{byte:02X}")).collect();
    assert_eq!(
        parsed(&with_colons.join(":")),
        Some(std::array::from_fn(|byte| byte as u8))
    );
}

#[test]
fn get_and_wait_speak_it_too() {
    let identity = Identity::new();
    let target = |pinned: String| {
        serde_json::json!({"address": identity.serve(1, b"hello").to_string(), "url": "https://server.test/x",
            "tls": {"server_name": "server.test", "pinned": pinned}})
    };
    let get = |pinned| {
        let spec = serde_json::json!({"target": target(pinned), "timeout_ns": HOUR_NS});
        crate::fetch::run(&serde_json::from_value(spec).unwrap())
    };
    let answer = get(identity.pinned()).unwrap();
    assert_eq!((answer.status, answer.length_bytes), (200, 5));
    let facts = answer.tls.unwrap();
    assert_eq!(
        (facts.certificate_sha256, facts.group.as_str()),
        (identity.pinned(), "X25519")
    );
    let Failed(why) = get("0".repeat(64)).unwrap_err();
    assert!(why.contains(&identity.pinned()), "{why}");
    let wait = |pinned, deadline_ns| {
        let spec = serde_json::json!({"target": target(pinned), "answer": true, "deadline_ns": deadline_ns,
            "poll_ns": 1_000_000});
        crate::wait::run(&serde_json::from_value(spec).unwrap())
    };
    assert_eq!(wait(identity.pinned(), HOUR_NS).unwrap().attempts, 1);
    // A busy machine does not come to the certificate within the first deadlines.
    let told = (1..300).any(|ms| {
        let Failed(why) = wait("0".repeat(64), ms * 1_000_000).unwrap_err();
        why.contains(&identity.pinned())
    });
    assert!(told, "whose certificate it was instead");
}

#[test]
fn the_url_and_the_target_agree_on_tls_and_a_proxy_is_plain() {
    let tls = serde_json::json!({"server_name": "server.test", "pinned": "0".repeat(64)});
    let refused = |target: serde_json::Value| {
        let mut spec = spec("127.0.0.1:1".parse().unwrap(), serde_json::Value::Null);
        spec["target"] = target;
        run(spec).unwrap_err().0
    };
    let address = "127.0.0.1:1";
    let why = refused(serde_json::json!({"address": address, "url": "http://a/", "tls": tls}));
    assert!(why.contains("with tls write https://"), "{why}");
    let why = refused(serde_json::json!({"address": address, "url": "https://a/"}));
    assert!(why.contains("without tls write http://"), "{why}");
    let why = refused(
        serde_json::json!({"address": address, "url": "https://a/", "tls": tls, "proxy": true}),
    );
    assert!(why.contains("a proxy is spoken to in plain"), "{why}");
}

/// Tickets can come without an end, too (of empty records rustls itself has enough soon). The socket waits instead of
/// saying that it has nothing, so that only the end of the turn can say that the connection is not quiet.
#[test]
fn a_stream_of_tickets_is_looked_at_for_a_turn_at_most() {
    let identity = Identity::new();
    let mut config = identity.server();
    config.enable_secret_extraction = true;
    config.send_tls13_tickets = 0;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
        connection.complete_io(&mut stream).unwrap();
        let records = tickets(connection, 100_000);
        let _ = stream.write_all(&records);
        let _ = stream.read(&mut [0]); // until the client ends
    });
    let tls = serde_json::json!({"server_name": "server.test", "pinned": identity.pinned()});
    let tls = Tls::new(&serde_json::from_value(tls).unwrap()).unwrap();
    let mut slot = crate::slot::Slot::new(crate::response::Response::default());
    slot.tls = Some(Box::new(Session::new(&tls).unwrap()));
    let patience = std::time::Duration::from_secs(3600); // a failure instead of a hang
    client.set_read_timeout(Some(patience)).unwrap();
    slot.fd = Some(client.into());
    let mut buffer = vec![0; 64 * 1024];
    assert!(!slot.is_quiet(&mut buffer));
    let (Some(fd), Some(tls)) = (&slot.fd, &mut slot.tls) else {
        panic!("closed")
    };
    let more = tls.receive(fd, &mut buffer, |_| ());
    assert!(matches!(more, Ok((1.., _))), "{more:?}"); // as good as ever
    slot.close();
    server.join().unwrap();
}

fn tickets(connection: ServerConnection, count: u64) -> Vec<u8> {
    let Some(rustls::SupportedCipherSuite::Tls13(suite)) = connection.negotiated_cipher_suite()
    else {
        panic!("no TLS 1.3")
    };
    let (first, secrets) = connection.dangerous_extract_secrets().unwrap().tx;
    let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else {
        panic!("another cipher")
    };
    let mut encrypter = suite.aead_alg.encrypter(key, iv);
    let ticket = [
        &[4, 0, 0, 14][..],        // NewSessionTicket, its length
        &[0, 0, 0, 9, 0, 0, 0, 0], // seconds of life, what is added to its age
        &[0, 0, 1, b't', 0, 0],    // no nonce, the ticket, no extensions
    ]
    .concat();
    let message = || OutboundPlainMessage {
        typ: ContentType::Handshake,
        version: ProtocolVersion::TLSv1_2,
        payload: OutboundChunks::Single(&ticket),
    };
    (first..first + count)
        .flat_map(|number| encrypter.encrypt(message(), number).unwrap().encode())
        .collect()
}
