//! Every message of the golden transcripts survives the way through the types unchanged.

use proptest::prelude::*;
use serde_json::Value;
use virtoll_wire::protocol::{Request, Response};

#[test]
fn messages_survive_unchanged() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts");
    let mut exchanges = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for line in text.lines() {
            let exchange: Value = serde_json::from_str(line).unwrap();
            let request: Request = serde_json::from_value(exchange["request"].clone()).unwrap();
            assert_eq!(serde_json::to_value(request).unwrap(), exchange["request"]);
            let response: Response = serde_json::from_value(exchange["response"].clone()).unwrap();
            assert_eq!(
                serde_json::to_value(response).unwrap(),
                exchange["response"]
            );
            exchanges += 1;
        }
    }
    assert!(exchanges > 25, "only {exchanges} exchanges were found");
}

#[test]
fn unknown_things_are_refused() {
    for line in [
        r#"{"id":1,"op":{"dance":{}}}"#,
        r#"{"id":1,"op":{"alive":{"pid":1,"and":2}}}"#,
        r#"{"id":1,"op":{"facts":{}},"extra":1}"#,
        r#"{"op":{"facts":{}}}"#,
    ] {
        assert!(serde_json::from_str::<Request>(line).is_err(), "{line}");
    }
}

/// Every line of the transcripts, both ways.
fn lines() -> Vec<String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transcripts");
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        for line in std::fs::read_to_string(entry.unwrap().path())
            .unwrap()
            .lines()
        {
            let exchange: Value = serde_json::from_str(line).unwrap();
            lines.extend(["request", "response"].map(|side| exchange[side].to_string()));
        }
    }
    lines
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = serde_json::from_slice::<Request>(&bytes);
        let _ = serde_json::from_slice::<Response>(&bytes);
    }

    /// What is understood comes over again as it was understood.
    #[test]
    fn a_message_that_was_changed_is_another_or_an_error(
        line in prop::sample::select(lines()), at: prop::sample::Index, byte: u8, cut: bool,
    ) {
        let mut bytes = line.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if cut {
            bytes.truncate(at);
        }
        if let Ok(request) = serde_json::from_slice::<Request>(&bytes) {
            let again = serde_json::to_vec(&request).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Request>(&again).unwrap(), request);
        }
        if let Ok(response) = serde_json::from_slice::<Response>(&bytes) {
            prop_assert_eq!(serde_json::from_slice::<Response>(&response.line()).unwrap(), response);
        }
    }
}

#[test]
fn brackets_without_end_are_an_error() {
    let deep = "[".repeat(100_000);
    assert!(serde_json::from_str::<Request>(&deep).is_err());
    let inside = format!(r#"{{"id":1,"ok":{deep}"#);
    assert!(serde_json::from_str::<Response>(&inside).is_err());
}
