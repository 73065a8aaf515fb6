//! `virtoll-load get`: one GET, and evidence of what came.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use virtoll_generator::Failed;

use crate::dialogue::Progress;
use crate::response::Response;
use crate::spec::Target;
use crate::stream::{Deadline, Facts, Stream};
use crate::tls::hexadecimal;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GetSpec {
    pub target: Target,
    /// For connecting and the whole answer.
    pub timeout_ns: u64,
}

/// What came. Header names are in lower case; of repeated ones the values are joined by ", ".
#[derive(Debug, Serialize)]
pub struct Answer {
    pub status: u16,
    pub length_bytes: u64,
    pub sha256: String,
    pub headers: BTreeMap<String, String>,
    /// With TLS only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Facts>,
}

/// Ask once and read the whole answer.
pub fn run(spec: &GetSpec) -> Result<Answer, Failed> {
    let failed = |what: &str| {
        Failed(format!(
            "GET {} from {}: {what}",
            spec.target.url, spec.target.address
        ))
    };
    let timeout = Duration::from_nanos(spec.timeout_ns);
    let late = || {
        failed(&format!(
            "no complete answer within {} s",
            timeout.as_secs_f64()
        ))
    };
    let told = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => late(),
        _ => failed(&error.to_string()),
    };
    let deadline = Deadline::after(timeout);
    let request = spec.target.request(false)?;
    let mut stream = Stream::connect(&spec.target, deadline, deadline.patience()).map_err(told)?;
    stream.write_all(&request).map_err(told)?;
    let (mut response, mut head) = (Response::default(), Vec::new());
    let mut digest = Context::new(&SHA256);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        // What comes byte by byte, each of them in time, must not go on for ever.
        if deadline.has_passed() {
            return Err(late());
        }
        let bytes = stream.read(&mut buffer).map_err(told)?;
        if !response.has_head() {
            head.extend_from_slice(&buffer[..bytes]);
        }
        let progress = match bytes {
            0 => response.end_of_stream(),
            _ => response.feed(&buffer[..bytes], |body| digest.update(body)),
        };
        match progress {
            Progress::Done => break,
            Progress::Broken(why) => return Err(failed(why)),
            Progress::More if bytes == 0 => {
                return Err(failed("the connection ended within the answer"))
            }
            Progress::More => {}
        }
    }
    Ok(Answer {
        status: response.status,
        length_bytes: response.body_bytes,
        sha256: hexadecimal(digest.finish().as_ref()),
        headers: headers(&head),
        tls: stream.facts(),
    })
}

/// The header fields of a complete head, with whatever follows it, and the interim ones (RFC 9110, 15.2) before it.
fn headers(head: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(head);
    let mut last: &str = &text;
    while last
        .split(' ')
        .nth(1)
        .is_some_and(|status| status.starts_with('1'))
    {
        last = last.split_once("\r\n\r\n").map_or("", |(_, next)| next);
    }
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for line in last.lines().skip(1).take_while(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        headers
            .entry(name.to_ascii_lowercase())
            .and_modify(|all| *all = format!("{all}, {}", value.trim()))
            .or_insert_with(|| value.trim().to_owned());
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serve one connection on loopback with fixed bytes.
    fn answer(text: &'static [u8]) -> Result<Answer, Failed> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]).unwrap();
            stream.write_all(text).unwrap();
        });
        let target = Target {
            address: address.parse().unwrap(),
            url: format!("http://{address}/x"),
            proxy: false,
            tls: None,
        };
        let answer = run(&GetSpec {
            target,
            timeout_ns: 60_000_000_000,
        });
        server.join().unwrap();
        answer
    }

    #[test]
    fn says_status_length_digest_and_headers() {
        let answer = answer(
            b"HTTP/1.1 200 OK\r\nX-Cache: HIT\r\nVia: a\r\nvia: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        )
        .unwrap();
        assert_eq!((answer.status, answer.length_bytes), (200, 3));
        assert_eq!(
            answer.sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(answer.headers["x-cache"], "HIT");
        assert_eq!(answer.headers["via"], "a, b");
    }

    #[test]
    fn an_interim_answers_headers_are_none_of_the_answers() {
        let answer = answer(
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nX-Cache: HIT\r\nContent-Length: 3\r\n\r\nabc",
        )
        .unwrap();
        assert_eq!((answer.status, answer.length_bytes), (200, 3));
        assert_eq!(answer.headers["x-cache"], "HIT");
        assert!(!answer.headers.contains_key("link"));
    }

    /// Each byte comes in time, and the answer never.
    #[test]
    fn an_answer_that_trickles_is_waited_for_only_so_long() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let spec = GetSpec {
            target: Target {
                address: address.parse().unwrap(),
                url: format!("http://{address}/x"),
                proxy: false,
                tls: None,
            },
            timeout_ns: 50_000_000,
        };
        let Failed(why) = run(&spec).unwrap_err();
        assert!(why.contains("no complete answer within 0.05 s"), "{why}");
        server.join().unwrap();
    }

    #[test]
    fn a_torn_answer_is_an_error() {
        let Failed(why) = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").unwrap_err();
        assert!(why.contains("ended within the answer"), "{why}");
    }
}
