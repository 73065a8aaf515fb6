use super::*;
use proptest::prelude::*;

struct Parsed {
    progress: Progress,
    response: Response,
    body: Vec<u8>,
}

fn parse_in_pieces(text: &[u8], piece_bytes: usize) -> Parsed {
    let mut parsed = Parsed {
        progress: Progress::More,
        response: Response::default(),
        body: Vec::new(),
    };
    for piece in text.chunks(piece_bytes) {
        parsed.progress = parsed
            .response
            .feed(piece, |bytes| parsed.body.extend_from_slice(bytes));
    }
    parsed
}

/// However the bytes are torn, the outcome is the same.
fn parse(text: &[u8]) -> Parsed {
    let whole = parse_in_pieces(text, text.len());
    for piece_bytes in 1..text.len() {
        let torn = parse_in_pieces(text, piece_bytes);
        assert_eq!(torn.progress, whole.progress, "in pieces of {piece_bytes}");
        assert_eq!(torn.body, whole.body);
        assert_eq!(torn.response.status, whole.response.status);
    }
    whole
}

#[test]
fn content_length() {
    let parsed = parse(b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length:  5 \r\n\r\nhello");
    assert_eq!(parsed.progress, Progress::Done);
    assert_eq!(
        (parsed.response.status, parsed.response.body_bytes),
        (200, 5)
    );
    assert!(parsed.response.keep_alive);
    assert_eq!(parsed.body, b"hello");
}

#[test]
fn chunks_with_extension_and_trailer() {
    let parsed = parse(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\nA\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
    );
    assert_eq!(parsed.progress, Progress::Done);
    assert_eq!(parsed.body, b"hello0123456789");
    assert_eq!(parsed.response.body_bytes, 15);
}

#[test]
fn body_until_the_stream_ends() {
    let mut parsed = parse(b"HTTP/1.0 200 OK\r\n\r\nhello");
    assert_eq!(parsed.progress, Progress::More);
    assert_eq!(parsed.response.end_of_stream(), Progress::Done);
    assert!(!parsed.response.keep_alive);
}

#[test]
fn a_short_body_is_not_done_when_the_stream_ends() {
    let mut parsed = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello");
    assert_eq!(parsed.response.end_of_stream(), Progress::More);
    assert!(parsed.response.has_head());
}

#[test]
fn connection_header_and_version_decide_on_reuse() {
    let keep_alive = |head: &[u8]| parse(head).response.keep_alive;
    assert!(!keep_alive(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    ));
    assert!(!keep_alive(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
    assert!(keep_alive(
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n"
    ));
    // A list of options: Apache httpd names its Upgrade there, too.
    for closes in [
        "Upgrade, close",
        "close,Upgrade",
        "keep-alive\r\nConnection: Close",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\nConnection: {closes}\r\nContent-Length: 0\r\n\r\n");
        assert!(!keep_alive(head.as_bytes()), "{closes}");
    }
    assert!(keep_alive(
        b"HTTP/1.0 200 OK\r\nConnection: Upgrade, Keep-Alive\r\nContent-Length: 0\r\n\r\n"
    ));
}

#[test]
fn responses_without_body_and_interim_ones() {
    assert_eq!(
        parse(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n").progress,
        Progress::Done
    );
    let parsed = parse(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n");
    assert_eq!(
        (parsed.progress, parsed.response.status),
        (Progress::Done, 204)
    );
}

#[test]
fn large_bodies_can_be_skipped() {
    let mut response = Response::default();
    assert_eq!(
        response.feed(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nabc",
            |_| ()
        ),
        Progress::More
    );
    assert_eq!(response.skippable(), 999_997);
    assert_eq!(response.skipped(999_000), Progress::More);
    assert_eq!(response.skipped(997), Progress::Done);
    assert_eq!(response.body_bytes, 1_000_000);
}

#[test]
fn what_is_not_http_is_refused() {
    for text in [
        &b"SSH-2.0-OpenSSH_9.2\r\n\r\n"[..],
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nhello",
    ] {
        let parsed = parse_in_pieces(text, text.len());
        assert!(
            matches!(parsed.progress, Progress::Broken(_)),
            "{}",
            String::from_utf8_lossy(text)
        );
    }
}

#[test]
fn interim_responses_without_end_are_refused() {
    let mut response = Response::default();
    let endless = (0..10_000)
        .map(|_| response.feed(b"HTTP/1.1 100 Continue\r\n\r\n", |_| ()))
        .find(|progress| *progress != Progress::More);
    assert!(matches!(endless, Some(Progress::Broken(_))));
}

#[test]
fn an_endless_head_is_refused() {
    let mut response = Response::default();
    let mut progress = response.feed(b"HTTP/1.1 200 OK\r\n", |_| ());
    for _ in 0..5_000 {
        progress = response.feed(b"X-Padding: 0123456789\r\n", |_| ());
        if progress != Progress::More {
            break;
        }
    }
    assert!(matches!(progress, Progress::Broken(_)));
}

/// Pieces that a parser must tell apart, in any order: most of what they make is wrong, and some of it right.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: [&str; 24] = [
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200 OK\n",
        "HTTP/1.1 100 Continue\r\n",
        "HTTP/1.1 204 \r\n",
        "HTTP/1.1 999",
        "Content-Length: 5\r\n",
        "Content-Length: 18446744073709551615\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Content-Length:\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, gzip\r\n",
        "Connection: close\r\n",
        "connection:keep-alive\n",
        ":\r\n",
        "\r\n",
        "\n",
        "\r",
        "5\r\n",
        "fffffffffffffff\r\n",
        "0000000000000000\r\n",
        "0\r\n",
        ";a=b\r\n",
        "hello",
        "\0",
    ];
    prop_oneof![
        8 => (0..WORDS.len()).prop_map(|index| WORDS[index].as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ]
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(fragment(), 0..12).prop_map(|fragments| fragments.concat())
}

/// Feed pieces of these lengths in turn until the response is done or broken.
fn outcome(text: &[u8], lengths: &[usize]) -> (Progress, u16, u64, Vec<u8>) {
    let (mut response, mut body, mut progress) = (Response::default(), Vec::new(), Progress::More);
    let (mut rest, mut turn) = (text, lengths.iter().cycle());
    while !rest.is_empty() && progress == Progress::More {
        let (piece, later) = rest.split_at((*turn.next().unwrap_or(&1)).min(rest.len()));
        progress = response.feed(piece, |bytes| body.extend_from_slice(bytes));
        assert!(response.torn_head.len() <= HEAD_MAX_BYTES + piece.len());
        rest = later;
    }
    // What follows the end in the same piece makes it a broken one; in a piece of its own it is never fed.
    (progress, response.status, response.body_bytes, body)
}

proptest! {
    #[test]
    fn whatever_comes_is_read_without_panic(text in text(), lengths in prop::collection::vec(1usize..20, 1..5)) {
        let (_, _, body_bytes, body) = outcome(&text, &lengths);
        prop_assert_eq!(body_bytes, body.len() as u64);
        prop_assert!(body.len() <= text.len());
    }

    #[test]
    fn tearing_changes_nothing(text in text(), lengths in prop::collection::vec(1usize..20, 1..5)) {
        let by_byte = outcome(&text, &[1]);
        let torn = outcome(&text, &lengths);
        if by_byte.0 != Progress::Done {
            prop_assert_eq!(&torn, &by_byte);
        } else {
            prop_assert_eq!((torn.1, torn.2, &torn.3), (by_byte.1, by_byte.2, &by_byte.3));
        }
    }

    #[test]
    fn skipping_is_like_reading(text in text(), asked in 1u64..50) {
        let read = outcome(&text, &[1]);
        let mut response = Response::default();
        let (mut at, mut progress) = (0, Progress::More);
        while at < text.len() && progress == Progress::More {
            let left = (text.len() - at) as u64;
            let taken = match response.skippable().min(asked).min(left) {
                0 => {
                    progress = response.feed(&text[at..at + 1], |_| ());
                    1
                }
                bytes => {
                    progress = response.skipped(bytes);
                    bytes
                }
            };
            at += taken as usize;
        }
        prop_assert_eq!((progress, response.status, response.body_bytes), (read.0, read.1, read.2));
    }
}
