//! `virtoll-load get`: one GET, and evidence of what came.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::response::{Progress, Response};
use crate::spec::Target;
use crate::Failed;

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
}

/// Ask once and read the whole answer.
pub fn run(spec: &GetSpec) -> Result<Answer, Failed> {
    let failed = |what: &str| {
        Failed(format!(
            "GET {} from {}: {what}",
            spec.target.url, spec.target.address
        ))
    };
    let deadline = Instant::now() + Duration::from_nanos(spec.timeout_ns);
    let request = spec.target.request(false)?;
    let mut stream =
        TcpStream::connect_timeout(&SocketAddr::V4(spec.target.address), left(deadline))
            .map_err(|error| failed(&error.to_string()))?;
    stream
        .write_all(&request)
        .map_err(|error| failed(&error.to_string()))?;
    let (mut response, mut digest, mut head) = (Response::default(), Sha256::new(), Vec::new());
    let mut buffer = vec![0; 64 * 1024];
    loop {
        stream
            .set_read_timeout(Some(left(deadline)))
            .map_err(|error| failed(&error.to_string()))?;
        let bytes = stream
            .read(&mut buffer)
            .map_err(|error| failed(&error.to_string()))?;
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
    let sha256 = digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(Answer {
        status: response.status,
        length_bytes: response.body_bytes,
        sha256,
        headers: headers(&head),
    })
}

fn left(deadline: Instant) -> Duration {
    // A time-out of zero would mean none.
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

/// The header fields of a complete head, with whatever follows it.
fn headers(head: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(head);
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for line in text.lines().skip(1).take_while(|line| !line.is_empty()) {
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
        };
        let answer = run(&GetSpec {
            target,
            timeout_ns: 5_000_000_000,
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
    fn a_torn_answer_is_an_error() {
        let Failed(why) = answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc").unwrap_err();
        assert!(why.contains("ended within the answer"), "{why}");
    }
}
