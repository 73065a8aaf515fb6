//! The real agent, over pipes: it answers the golden transcripts as they say, and ends what it started.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout};

use serde_json::Value;
use virtoll_probe::names::unique;
use virtoll_wire::protocol::MARKER;

struct Session {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Session {
    fn start() -> Session {
        let (process, input, output) = common::serve();
        Session {
            process,
            input,
            output,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, request: &Value) -> Value {
        writeln!(self.input, "{request}").unwrap();
        let mut line = self.line();
        while line == "\n" || line.trim_end() == MARKER {
            line = self.line();
        }
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.process.wait().unwrap().success());
    }
}

fn replay(name: &str) {
    let path = format!(
        "{}/../wire/tests/transcripts/{name}.jsonl",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut session = Session::start();
    let mut pids: HashMap<String, Value> = HashMap::new();
    let directory = std::env::temp_dir().join(unique("virtoll-transcript"));
    let exchanges = std::fs::read_to_string(path).unwrap();
    // Others may replay it at the same time.
    let exchanges = exchanges.replace("/tmp/virtoll-transcript", directory.to_str().unwrap());
    for line in exchanges.lines() {
        let mut exchange: Value = serde_json::from_str(line).unwrap();
        let (op, arguments) = exchange["request"]["op"]
            .as_object_mut()
            .unwrap()
            .iter_mut()
            .next()
            .unwrap();
        let op = op.clone();
        if let Some(real) = arguments
            .get("pid")
            .and_then(|pid| pids.get(&pid.to_string()))
        {
            arguments["pid"] = real.clone();
        }
        let mut response = session.ask(&exchange["request"]);
        if op == "spawn" {
            let recorded = exchange["response"]["ok"]["pid"].to_string();
            pids.insert(recorded, response["ok"]["pid"].clone());
        }
        for key in exchange["vary"].as_array().into_iter().flatten() {
            let key = key.as_str().unwrap();
            assert!(response["ok"].get(key).is_some(), "{op}: {key} is missing");
            response["ok"][key] = exchange["response"]["ok"][key].clone();
        }
        assert_eq!(response, exchange["response"], "{op}");
    }
    session.end();
}

#[test]
fn operations() {
    replay("operations");
}

#[test]
fn failures() {
    replay("failures");
}

#[test]
fn a_controller_of_another_protocol() {
    replay("other_protocol");
}

#[test]
fn a_request_before_hello() {
    replay("no_hello");
}

#[test]
fn noise_before_hello_is_passed_over() {
    let mut session = Session::start();
    writeln!(session.input, "[    0.1] kernel: booting\n\x1b[2J{{\"id\":").unwrap();
    let hello = serde_json::json!({"id": 5, "op": {"hello": {"protocol": 4}}});
    assert_eq!(session.ask(&hello)["id"], 5);
    session.end();
}

#[test]
fn the_answer_to_hello_follows_the_marker() {
    let mut session = Session::start();
    writeln!(
        session.input,
        r#"{{"id":1,"op":{{"hello":{{"protocol":4}}}}}}"#
    )
    .unwrap();
    assert_eq!(session.line(), "\n");
    assert_eq!(session.line().trim_end(), MARKER);
    assert!(session.line().starts_with(r#"{"id":1,"ok":"#));
    session.end();
}
