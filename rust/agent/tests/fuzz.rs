//! The real agent is sent what nobody should send: it answers or refuses, and goes on.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::Mutex;

use proptest::prelude::*;
use serde_json::{json, Value};

struct Session {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    id: u64,
}

impl Session {
    fn start() -> Session {
        let (process, input, output) = common::serve();
        let mut session = Session {
            process,
            input: Some(input),
            output,
            id: 1,
        };
        session.send(br#"{"id":1,"op":{"hello":{"protocol":4}}}"#);
        session.answer_to(1);
        session
    }

    fn send(&mut self, line: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(line).unwrap();
        input.write_all(b"\n").unwrap();
    }

    /// What the agent says until it answers request `id`, that answer being the last.
    fn answer_to(&mut self, id: u64) -> Vec<Value> {
        let mut answers = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).unwrap(),
                0,
                "the agent ended"
            );
            if let Ok(answer) = serde_json::from_str::<Value>(&line) {
                let is_last = answer["id"] == id;
                answers.push(answer);
                if is_last {
                    return answers;
                }
            }
        }
    }

    /// Send a line; every answer up to that of a request that follows is well formed.
    fn survives(&mut self, line: &[u8]) {
        self.send(line);
        self.id += 1;
        let id = 1 << 40 | self.id;
        self.send(
            json!({"id": id, "op": {"clock": {}}})
                .to_string()
                .as_bytes(),
        );
        for answer in self.answer_to(id) {
            assert!(
                answer["ok"].is_object() || answer["error"]["what"].is_string(),
                "{answer}"
            );
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.input.take());
        let ended = self.process.wait().unwrap();
        if !std::thread::panicking() {
            assert!(ended.success());
        }
    }
}

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn survives(line: &[u8]) {
    let mut session = SESSION.lock().unwrap();
    session.get_or_insert_with(Session::start).survives(line);
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        Just(json!(u64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(0)),
        Just(json!(null)),
        Just(json!("1")),
        any::<f64>().prop_map(Value::from),
    ]
}

/// Requests that change nothing on the machine, with numbers that nobody should give.
fn odd_request() -> impl Strategy<Value = Value> {
    (number(), number(), number(), 0..14).prop_map(|(a, b, c, which)| match which {
        0 => json!({"alive": {"pid": a}}),
        1 => json!({"kill": {"pid": a, "grace_ms": b}}),
        2 => json!({"get": {"path": "/etc/hostname", "offset": a}}),
        3 => json!({"burn": {"threads": 0, "duration_ms": a}}),
        4 => json!({"sample_start": {"sources": [{"name": "s", "kind": "stat", "path": "/proc/stat", "only": []}],
                    "interval_ns": a, "keep_ticks": b}}),
        5 => json!({"sample_collect": {"from": a}}),
        6 => json!({"run": {"argv": ["true"], "stdin": "", "timeout_ms": c, "env": null, "cwd": "", "user": ""}}),
        7 => json!({"describe": {"pid": a}}),
        8 => json!({"listening": {"port": a, "protocol": "udp"}}),
        9 => json!({"tail": {"path": "/etc/passwd", "bytes": a}}),
        10 => json!({"reserve": {"directory": "/proc/no", "bytes": a}}),
        11 => json!({"run": {"argv": ["true", "a\0b"], "stdin": "", "timeout_ms": c, "env": {"=\0": "\0"},
                    "cwd": "\0", "user": b.to_string()}}),
        12 => json!({"configure": {"hostname": "", "pids": a, "open_files": [b, c], "device": "", "address": "",
                    "prefix_length": b, "gateway": null, "on_link_gateway": false}}),
        _ => json!({"part": {"text": b.to_string()}}),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn bytes_that_are_no_request(line in prop::collection::vec(any::<u8>(), 0..300)) {
        survives(&line);
    }

    #[test]
    fn requests_with_odd_numbers(op in odd_request(), id in 1u64..1000) {
        let burns_long = op["burn"]["duration_ms"].as_u64().is_some_and(|ms| ms > 5 && ms <= 3_600_000);
        if !burns_long {
            survives(json!({"id": id, "op": op}).to_string().as_bytes());
        }
    }
}

#[test]
fn brackets_parts_and_lines_without_end() {
    survives("[".repeat(1 << 20).as_bytes());
    survives(
        format!(
            r#"{{"id":1,"op":{{"alive":{{"pid":{}}}}}}}"#,
            "9".repeat(1 << 20)
        )
        .as_bytes(),
    );
    survives(&vec![b'x'; 6 << 20]);
    survives(br#"{"id":2,"op":{"whole":{}}}"#);
    let part = json!({"id": 3, "op": {"part": {"text": "y".repeat(1 << 20)}}}).to_string();
    for _ in 0..6 {
        survives(part.as_bytes());
    }
    survives(br#"{"id":4,"op":{"part":{"text":"{\"id\":5,\"op\":{\"whole\":{}}}"}}}"#);
    survives(br#"{"id":6,"op":{"whole":{}}}"#);
    survives(br#"{"id":7,"op":{"whole":{}}}"#);
}
