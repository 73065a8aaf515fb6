//! What the controller asks for, as JSON on standard input. Times are nanoseconds.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use serde::Deserialize;
use virtoll_generator::time::TIME_MAX_NS;
use virtoll_generator::Failed;

use crate::dialogue::Ask;
use crate::redis::RedisAsk;
use crate::tls::Tls;

/// A measurement of HTTP: one object, asked for again and again.
pub type HttpSpec = Spec<HttpAsk>;

/// A measurement of Redis; see `redis.rs`.
pub type RedisSpec = Spec<RedisAsk>;

/// A measurement. The fields of `ask` stand beside the others.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec<A> {
    #[serde(flatten)]
    pub ask: A,
    /// Threads; each has its own connections and event loop.
    pub threads: usize,
    /// CPUs to pin threads to, one each in turn; none: as inherited.
    #[serde(default)]
    pub cpus: Vec<usize>,
    #[serde(rename = "loop")]
    pub loop_: Loop,
    /// When it begins to ask, by CLOCK_MONOTONIC of this machine, so that many generators begin at once; null: as soon
    /// as all threads are ready. Nothing is sent or connected before, in closed loop neither. The window in the report
    /// begins at this very time, or after the lead-in. An error where it has passed when it is read, or before all
    /// threads are ready.
    #[serde(default)]
    pub start_ns: Option<i64>,
    /// For so long the same connections ask right before the window, which begins in the midst of it: what is under way
    /// then counts for its part within the window, as what is under way at its end does. A time limit and a number of
    /// requests count from the window's begin; an open schedule begins so much earlier. 0: the window begins with
    /// nothing under way.
    #[serde(default)]
    pub lead_in_ns: i64,
    /// Closed loop, where no start is asked for: the lead-in goes on for up to so long, until each connection was answered
    /// once. Less than `lead_in_ns`, and where that is 0: nobody is waited for.
    #[serde(default)]
    pub lead_in_most_ns: i64,
    /// A request without a complete answer after this long has failed.
    pub timeout_ns: i64,
    /// Whose CPU time is told, by name: a control group's `cpuacct.usage` or `cpu.stat` each.
    #[serde(default)]
    pub books: BTreeMap<String, PathBuf>,
    /// Where to write one record per request (see `log.rs`); none: nowhere.
    #[serde(default)]
    pub request_log: Option<PathBuf>,
    /// At most so many records.
    #[serde(default = "default_log_limit")]
    pub log_limit: usize,
}

fn default_log_limit() -> usize {
    1_000_000
}

/// What is asked for, how, and what a correct answer looks like.
#[derive(Clone, Debug, Deserialize)]
pub struct HttpAsk {
    pub target: Target,
    /// Use a connection for many requests, or one for each (and say so: `Connection: close`).
    pub keep_alive: bool,
    pub expect: Expect,
}

/// Whom to ask, and for what.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub address: SocketAddrV4,
    /// Absolute: `http://host:port/path`. A proxy is sent all of it, a server the path alone. With `tls` it begins with
    /// `https://`, and without it does not.
    pub url: String,
    #[serde(default)]
    pub proxy: bool,
    /// Speak TLS 1.3; null: plain HTTP. A proxy is spoken to in plain. See `tls.rs`.
    #[serde(default)]
    pub tls: Option<TlsSpec>,
}

/// How the server's certificate is verified: by `ca` or `pinned`, and exactly one of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsSpec {
    /// The host's name (or IP address) that it is asked as; against a CA its certificate must be for this name.
    pub server_name: String,
    /// A PEM file of trusted certificates.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// SHA-256 of the server's certificate (DER), 64 hexadecimal digits, with colons or without.
    #[serde(default)]
    pub pinned: Option<String>,
}

/// When requests are sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Loop {
    /// Each connection asks again as soon as it was answered.
    Closed {
        connections: usize,
        requests: Option<u64>,
        time_limit_ns: i64,
    },
    /// Requests are due by the clock, whether earlier ones were answered or not.
    Open {
        rate_per_s: f64,
        arrival: Arrival,
        duration_ns: i64,
        seed: u64,
        max_connections: usize,
    },
}

impl Loop {
    pub fn connections(&self) -> usize {
        match self {
            Loop::Closed { connections, .. } => *connections,
            Loop::Open {
                max_connections, ..
            } => *max_connections,
        }
    }
}

/// How the times between arrivals are spread.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    Constant,
    Poisson,
}

/// What a correct answer looks like; `length_bytes` null: any length.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub status: u16,
    pub length_bytes: Option<u64>,
}

const CONNECTIONS_MAX: usize = 1_000_000;
const THREADS_MAX: usize = 1024;
const RATE_MAX_PER_S: f64 = 1e7;
const LOG_MAX: usize = 100_000_000;

impl<A: Ask> Spec<A> {
    /// Refuse what cannot be measured.
    pub fn checked(self) -> Result<Self, Failed> {
        let problem = match &self.loop_ {
            Loop::Closed { time_limit_ns, .. } if *time_limit_ns > TIME_MAX_NS => {
                "time_limit_ns must be at most 30 days"
            }
            Loop::Open { duration_ns, .. } if *duration_ns > TIME_MAX_NS => {
                "duration_ns must be at most 30 days"
            }
            Loop::Open { rate_per_s, .. } if *rate_per_s > RATE_MAX_PER_S => {
                "rate_per_s must be at most ten million"
            }
            _ if self.timeout_ns > TIME_MAX_NS => "timeout_ns must be at most 30 days",
            _ if ![self.lead_in_ns, self.lead_in_most_ns]
                .iter()
                .all(|time_ns| (0..=TIME_MAX_NS).contains(time_ns)) =>
            {
                "lead_in_ns and lead_in_most_ns must be at least 0, and at most 30 days"
            }
            _ if self.threads > THREADS_MAX => "threads must be at most 1024",
            _ if self.loop_.connections() > CONNECTIONS_MAX => {
                "there must be at most a million connections"
            }
            _ if self.log_limit > LOG_MAX => "log_limit must be at most a hundred million",
            Loop::Closed { time_limit_ns, .. } if *time_limit_ns <= 0 => {
                "time_limit_ns must be above 0"
            }
            Loop::Closed {
                requests: Some(0), ..
            } => "requests must be above 0, or null",
            Loop::Open { rate_per_s, .. } if !(rate_per_s.is_finite() && *rate_per_s > 0.0) => {
                "rate_per_s must be above 0"
            }
            Loop::Open { duration_ns, .. } if *duration_ns <= 0 => "duration_ns must be above 0",
            _ if self.timeout_ns <= 0 => "timeout_ns must be above 0",
            _ if self.threads == 0 => "threads must be above 0",
            _ if self.loop_.connections() < self.threads => {
                "there must be a connection for each thread"
            }
            _ => match self.ask.problem() {
                None => return Ok(self),
                Some(problem) => problem,
            },
        };
        Err(Failed(format!(
            "the specification cannot be run: {problem}"
        )))
    }
}

impl Target {
    /// The bytes of one GET.
    pub fn request(&self, keep_alive: bool) -> Result<Vec<u8>, Failed> {
        let (authority, path) = self.url_parts()?;
        let asked = if self.proxy { self.url.as_str() } else { path };
        let connection = if keep_alive {
            ""
        } else {
            "Connection: close\r\n"
        };
        Ok(format!("GET {asked} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: virtoll-load\r\n{connection}\r\n").into_bytes())
    }

    /// What connections to it have in common; none: they are plain.
    pub fn tls(&self) -> Result<Option<Tls>, Failed> {
        if self.tls.is_some() && self.proxy {
            return Err(Failed(
                "a proxy is spoken to in plain: leave out tls, or proxy".into(),
            ));
        }
        self.tls.as_ref().map(Tls::new).transpose()
    }

    /// `host:port`, and the path.
    pub fn url_parts(&self) -> Result<(&str, &str), Failed> {
        let (scheme, with) = match self.tls {
            Some(_) => ("https", "with"),
            None => ("http", "without"),
        };
        let bad = || {
            Failed(format!(
                "{:?} is not an {scheme} URL: {with} tls write {scheme}://HOST[:PORT]/PATH",
                self.url
            ))
        };
        let rest = self.url.strip_prefix(scheme).ok_or_else(bad)?;
        let rest = rest.strip_prefix("://").ok_or_else(bad)?;
        let slash = rest.find('/').ok_or_else(bad)?;
        if slash == 0 || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(bad());
        }
        Ok(rest.split_at(slash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(url: &str, proxy: bool) -> Target {
        Target {
            address: "127.0.0.1:80".parse().unwrap(),
            url: url.into(),
            proxy,
            tls: None,
        }
    }

    #[test]
    fn a_server_is_sent_the_path_and_a_proxy_the_url() {
        let direct = target("http://10.0.0.1:8080/a?b", false)
            .request(true)
            .unwrap();
        assert!(direct.starts_with(b"GET /a?b HTTP/1.1\r\nHost: 10.0.0.1:8080\r\n"));
        assert!(direct.ends_with(b"\r\n\r\n"));
        let proxied = String::from_utf8(
            target("http://10.0.0.1:8080/a", true)
                .request(false)
                .unwrap(),
        )
        .unwrap();
        assert!(proxied.starts_with("GET http://10.0.0.1:8080/a HTTP/1.1\r\n"));
        assert!(proxied.contains("\r\nConnection: close\r\n"));
    }

    #[test]
    fn other_urls_are_refused() {
        for url in ["https://a/", "http:///x", "http://a", "http://a/b c", "/x"] {
            assert!(target(url, false).request(true).is_err(), "{url}");
        }
    }

    #[test]
    fn specifications_that_cannot_be_run_are_refused() {
        let parse = |loop_: &str| {
            let text = format!(
                r#"{{"target":{{"address":"1.2.3.4:80","url":"http://a/"}},"keep_alive":true,"threads":1,"timeout_ns":1,
                     "expect":{{"status":200,"length_bytes":null}},"loop":{loop_}}}"#
            );
            serde_json::from_str::<HttpSpec>(&text)
                .map_err(|error| Failed(error.to_string()))
                .and_then(HttpSpec::checked)
        };
        assert!(parse(r#"{"closed":{"connections":1,"requests":null,"time_limit_ns":1}}"#).is_ok());
        assert!(parse(r#"{"closed":{"connections":1,"requests":0,"time_limit_ns":1}}"#).is_err());
        assert!(parse(r#"{"closed":{"connections":0,"requests":1,"time_limit_ns":1}}"#).is_err());
        assert!(
            parse(r#"{"closed":{"connections":1,"requests":1,"time_limit_ns":1,"typo":1}}"#)
                .is_err()
        );
        assert!(parse(
            r#"{"open":{"rate_per_s":0,"arrival":"poisson","duration_ns":1,"seed":1,"max_connections":1}}"#
        )
        .is_err());
    }

    fn any_loop() -> impl Strategy<Value = Loop> {
        prop_oneof![
            (any::<usize>(), any::<Option<u64>>(), any::<i64>()).prop_map(
                |(connections, requests, time_limit_ns)| Loop::Closed {
                    connections,
                    requests,
                    time_limit_ns
                }
            ),
            (
                any::<f64>(),
                any::<bool>(),
                any::<i64>(),
                any::<u64>(),
                any::<usize>()
            )
                .prop_map(
                    |(rate_per_s, poisson, duration_ns, seed, max_connections)| Loop::Open {
                        rate_per_s,
                        arrival: if poisson {
                            Arrival::Poisson
                        } else {
                            Arrival::Constant
                        },
                        duration_ns,
                        seed,
                        max_connections
                    }
                ),
        ]
    }

    proptest! {
        /// What is let through can be added up with any time of this machine, and held in memory.
        #[test]
        fn what_is_run_is_bounded(
            loop_ in any_loop(), threads: usize, timeout_ns: i64, lead_in_ns: i64, lead_in_most_ns: i64,
            log_limit: usize, url in ".{0,40}",
        ) {
            let spec = HttpSpec {
                ask: HttpAsk {
                    target: target(&url, false),
                    keep_alive: true,
                    expect: Expect { status: 200, length_bytes: None },
                },
                threads,
                cpus: Vec::new(),
                loop_,
                start_ns: None,
                lead_in_ns,
                lead_in_most_ns,
                timeout_ns,
                books: BTreeMap::new(),
                request_log: None,
                log_limit,
            };
            let _ = spec.ask.target.request(true);
            if let Ok(spec) = spec.checked() {
                let length_ns = match spec.loop_ {
                    Loop::Closed { time_limit_ns, .. } => time_limit_ns,
                    Loop::Open { duration_ns, .. } => duration_ns,
                };
                prop_assert!((1..=TIME_MAX_NS).contains(&length_ns));
                prop_assert!((1..=TIME_MAX_NS).contains(&spec.timeout_ns));
                prop_assert!((0..=TIME_MAX_NS).contains(&spec.lead_in_ns));
                prop_assert!((0..=TIME_MAX_NS).contains(&spec.lead_in_most_ns));
                prop_assert!((1..=THREADS_MAX).contains(&spec.threads));
                prop_assert!((spec.threads..=CONNECTIONS_MAX).contains(&spec.loop_.connections()));
                prop_assert!(spec.log_limit <= LOG_MAX);
            }
        }

        #[test]
        fn whatever_is_given_as_a_specification_is_read_without_panic(text in ".{0,200}") {
            let _ = serde_json::from_str::<HttpSpec>(&text);
        }
    }
}
