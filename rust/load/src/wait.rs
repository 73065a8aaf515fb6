//! `virtoll-load wait`: when does a server begin to serve?

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::Target;
use crate::{sys, Failed};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitSpec {
    pub target: Target,
    /// Accepting is not enough: wait until a GET of the URL brings an HTTP status, whichever.
    pub answer: bool,
    pub deadline_ns: i64,
    pub poll_ns: u64,
}

/// The moment it did, by CLOCK_MONOTONIC, and what it took.
#[derive(Debug, Serialize)]
pub struct Ready {
    pub ready_ns: i64,
    pub waited_ns: i64,
    pub attempts: u64,
}

/// Try every `poll_ns` until it works, for at most `deadline_ns`.
pub fn run(spec: &WaitSpec) -> Result<Ready, Failed> {
    let request = spec.target.request(false)?;
    let start_ns = sys::now_ns();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let left_ns = spec.deadline_ns - (sys::now_ns() - start_ns);
        let outcome = attempt(
            spec,
            &request,
            Duration::from_nanos(left_ns.max(1_000_000) as u64),
        );
        let now_ns = sys::now_ns();
        match outcome {
            Ok(()) => {
                return Ok(Ready {
                    ready_ns: now_ns,
                    waited_ns: now_ns - start_ns,
                    attempts,
                })
            }
            Err(why) if now_ns - start_ns >= spec.deadline_ns => {
                let waited_s = spec.deadline_ns as f64 / 1e9;
                return Err(Failed(format!(
                    "{} did not {} within {waited_s} s: {why} ({attempts} attempts); look at the service's own log",
                    spec.target.address,
                    if spec.answer { "answer" } else { "accept" },
                )));
            }
            Err(_) => sleep(Duration::from_nanos(spec.poll_ns)),
        }
    }
}

fn attempt(spec: &WaitSpec, request: &[u8], timeout: Duration) -> Result<(), String> {
    // A SYN lost before the instance had an address is sent again only after a second: do not wait for that.
    let connect_timeout = timeout.min(Duration::from_millis(100));
    let text = |error: std::io::Error| error.to_string();
    let mut stream =
        TcpStream::connect_timeout(&SocketAddr::V4(spec.target.address), connect_timeout)
            .map_err(text)?;
    if !spec.answer {
        return Ok(());
    }
    stream
        .set_read_timeout(Some(timeout.min(Duration::from_secs(5))))
        .map_err(text)?;
    stream.write_all(request).map_err(text)?;
    let mut start = [0; 7];
    stream.read_exact(&mut start).map_err(text)?;
    if &start == b"HTTP/1." {
        Ok(())
    } else {
        Err("what answers is no HTTP server".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn spec(address: SocketAddr, answer: bool, deadline_ns: i64) -> WaitSpec {
        let url = format!("http://{address}/");
        let SocketAddr::V4(address) = address else {
            panic!("IPv4 expected")
        };
        WaitSpec {
            target: Target {
                address,
                url,
                proxy: false,
            },
            answer,
            deadline_ns,
            poll_ns: 1_000_000,
        }
    }

    #[test]
    fn a_port_that_opens_late_is_seen() {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let server = std::thread::spawn(move || {
            sleep(Duration::from_millis(50));
            let listener = TcpListener::bind(address).unwrap();
            listener.accept().unwrap();
        });
        let ready = run(&spec(address, false, 10_000_000_000)).unwrap();
        server.join().unwrap();
        assert!(
            ready.waited_ns >= 40_000_000 && ready.attempts > 1,
            "{ready:?}"
        );
    }

    #[test]
    fn accepting_is_not_answering() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Failed(why) = run(&spec(listener.local_addr().unwrap(), true, 30_000_000)).unwrap_err();
        assert!(why.contains("did not answer within 0.03 s"), "{why}");
    }
}
