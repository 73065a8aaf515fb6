use super::*;

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
