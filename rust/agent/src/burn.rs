//! A server whose requests cost what they are told to: `virtoll calibrate` deploys it, to see whether a cost that is
//! known is found.
//!
//! Each GET of an object (`/o/N`) first does the same work on every arm: `passes` over a buffer that fills a core's own
//! cache, so that it feels what any computing program feels. Then it burns `extra_ns` of its thread's CPU time, which
//! is what it costs more than one that burns none, whatever the machine's pace. A thread serves each connection.

use std::hint::black_box;
use std::io::{self, Write};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::atomic::{compiler_fence, Ordering};
use std::thread;

use virtoll_http::{head, object, serve, Request};
use virtoll_probe::arguments::Arguments;
use virtoll_probe::windows::clock_ns;

const WORDS: usize = 32 * 1024; // 256 KiB
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
const MOST_OBJECT_BYTES: u64 = 1 << 30;
const MOST_EXTRA_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Cost {
    passes: u64,
    extra_ns: u64,
}

/// Serve on the port that `words` name, until it is killed. Exit 2 for wrong arguments, 1 where it cannot listen.
pub fn main(words: &[String]) -> ExitCode {
    let (port, cost) = match told(words) {
        Ok(told) => told,
        Err(complaint) => {
            eprintln!("virtoll-agent burn: {complaint}");
            return ExitCode::from(2);
        }
    };
    let listener = match TcpListener::bind(("0.0.0.0", port)) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("virtoll-agent burn: port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    for stream in listener.incoming().flatten() {
        let _ = stream.set_nodelay(true); // an answer is flushed whole
        let begun = thread::Builder::new().spawn(move || {
            let mut buffer = vec![1; WORDS];
            serve(&stream, |request, output| {
                answer(request, cost, &mut buffer, output)
            });
        });
        if let Err(error) = begun {
            eprintln!("connection refused: {error}"); // the stream is closed with the closure that held it
        }
    }
    ExitCode::SUCCESS
}

fn told(words: &[String]) -> Result<(u16, Cost), String> {
    let mut arguments = Arguments::parse(words)?;
    let port = arguments.within("port", 1, u64::from(u16::MAX), 8080) as u16;
    let cost = Cost {
        passes: arguments.get("passes", 1),
        extra_ns: arguments.within("extra-ns", 0, MOST_EXTRA_NS, 0),
    };
    match arguments.complaint() {
        Some(complaint) => Err(complaint),
        None => Ok((port, cost)),
    }
}

fn answer(
    request: &Request,
    cost: Cost,
    buffer: &mut [u64],
    output: &mut dyn Write,
) -> io::Result<()> {
    match request.object_bytes() {
        Some(length) if length <= MOST_OBJECT_BYTES => {
            black_box(work(buffer, cost.passes));
            burn(cost.extra_ns);
            head(200, length, output)?;
            object(length, output)
        }
        _ => head(404, 0, output),
    }
}

/// Each word is mixed into the next: nothing of it can be done at once, or left out.
fn work(buffer: &mut [u64], passes: u64) -> u64 {
    let mut mixed = 1_u64;
    for _ in 0..passes {
        for word in buffer.iter_mut() {
            mixed = (mixed ^ *word).wrapping_mul(MIX);
            *word = mixed;
        }
        compiler_fence(Ordering::SeqCst);
    }
    mixed
}

/// Compute until so much more of this thread's CPU time is used.
fn burn(extra_ns: u64) {
    if extra_ns == 0 {
        return;
    }
    let end_ns = thread_cpu_ns() + extra_ns;
    while thread_cpu_ns() < end_ns {
        for step in 0..16_u64 {
            black_box(step);
        }
    }
}

fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn it_burns_what_it_is_told() {
        let before_ns = thread_cpu_ns();
        burn(2_000_000);
        assert!(thread_cpu_ns() - before_ns >= 2_000_000);
        burn(0);
    }

    #[test]
    fn every_pass_is_work_of_its_own() {
        let (mut one, mut two) = (vec![1; 8], vec![1; 8]);
        assert_eq!(work(&mut one, 0), 1);
        assert_eq!(one, two);
        assert_ne!(work(&mut one, 1), work(&mut two, 2));
        assert_ne!(one, two);
    }

    #[test]
    fn wrong_words_are_refused() {
        assert_eq!(told(&words("--port 80 --passes 3")).unwrap().1.passes, 3);
        assert!(told(&words("--port 0")).is_err());
        assert!(told(&words("--colour red")).is_err());
        assert!(told(&words("--extra-ns 2000000000")).is_err());
    }

    #[test]
    fn objects_alone_cost_something_and_the_rest_is_not_found() {
        let cost = Cost {
            passes: 1,
            extra_ns: 0,
        };
        let mut buffer = vec![1; 8];
        for (path, starts) in [("/o/20", "HTTP/1.1 200"), ("/health", "HTTP/1.1 404")] {
            let request = Request {
                path: path.to_owned(),
                last: false,
            };
            let mut output = Vec::new();
            answer(&request, cost, &mut buffer, &mut output).unwrap();
            assert!(String::from_utf8(output).unwrap().starts_with(starts));
        }
        assert_ne!(buffer[0], 1);
    }
}
