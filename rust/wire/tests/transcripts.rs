//! Every message of the golden transcripts survives the way through the types unchanged.

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
