//! `virtoll-load wait`: when does a server begin to serve?

use std::io::{Read, Write};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use virtoll_generator::{sys, Failed};

use crate::spec::Target;
use crate::stream::{Deadline, Stream};

/// How long one attempt waits for the beginning of an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitSpec {
    pub target: Target,
    /// Accepting is not enough: wait until a GET of the URL (over TLS where the target has it)
    /// brings an HTTP status, whichever.
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
    spec.target.tls()?; // what is wrong with it does not mend itself
    let start_ns = sys::now_ns();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let left_ns = spec.deadline_ns.saturating_sub(sys::now_ns() - start_ns);
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
    let deadline = Deadline::after(timeout.min(ANSWER_PATIENCE));
    // A SYN lost before the instance had an address is sent again only after a second: do not wait for that.
    let connect_timeout = timeout.min(Duration::from_millis(100));
    let text = |error: std::io::Error| error.to_string();
    let mut stream = Stream::connect(&spec.target, deadline, connect_timeout).map_err(text)?;
    if !spec.answer {
        return Ok(());
    }
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
pub mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::{AsRawFd, FromRawFd};

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
                tls: None,
            },
            answer,
            deadline_ns,
            poll_ns: 1_000_000,
        }
    }

    /// A port that is taken and refuses, until somebody listens on it.
    pub fn bound() -> TcpListener {
        let loopback = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes([127, 0, 0, 1]),
            },
            sin_zero: [0; 8],
        };
        // SAFETY: the kernel reads a valid sockaddr_in of its size; the descriptor is owned by nobody else.
        unsafe {
            let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0);
            let socket = TcpListener::from_raw_fd(fd);
            let length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            assert_eq!(libc::bind(fd, (&raw const loopback).cast(), length), 0);
            socket
        }
    }

    #[test]
    fn a_port_is_ready_when_somebody_listens_and_not_before() {
        let socket = bound();
        let address = socket.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            sleep(Duration::from_millis(50));
            let opened_ns = sys::now_ns();
            // SAFETY: `listen` touches no memory of ours.
            assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 1) }, 0);
            socket.accept().unwrap();
            opened_ns
        });
        let ready = run(&spec(address, false, 60_000_000_000)).unwrap();
        let opened_ns = server.join().unwrap();
        assert!(ready.ready_ns >= opened_ns, "{ready:?}");
    }

    #[test]
    fn accepting_is_not_answering() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Failed(why) = run(&spec(listener.local_addr().unwrap(), true, 30_000_000)).unwrap_err();
        assert!(why.contains("did not answer within 0.03 s"), "{why}");
    }
}
