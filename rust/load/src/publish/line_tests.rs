use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use super::*;
use crate::publish::announced::{tests::usual, Announced};
use crate::publish::rtmp::Rtmp;
use crate::publish::Streams;
use crate::rtmp::session::Application;

#[test]
fn what_a_server_does_not_take_is_kept_only_so_far() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        panic!("IPv4 expected")
    };
    let application = Application::checked("live", "rtmp://h:1/live").unwrap();
    let mut line = Line {
        fd: sys::connect(&address.into()).unwrap(),
        speaker: Box::new(Rtmp::new(&application, "film")),
        since_ns: sys::now_ns(),
        unsent: vec![0; BACKLOG_MAX / 2],
        sent: 0,
        blocked_ns: None,
        play: None,
    };
    let _server = listener.accept().unwrap();
    let patience_ns = 3_600_000_000_000;
    assert!(line.flush(patience_ns).is_ok());
    assert!(line.is_blocked());
    line.unsent.extend_from_slice(&[0; BACKLOG_MAX]);
    assert_eq!(line.flush(patience_ns), Err(Failure::Timeout));
}

/// Each of its requests is answered, and none of them is media: there is no end of either.
#[test]
fn a_server_that_asks_without_end_is_not_heard_out() {
    let film = usual();
    let publication = Publication {
        address: "127.0.0.1:1".parse().unwrap(),
        streams: Streams::Rtsp {
            announced: Announced::of(&film).unwrap(),
            urls: vec!["rtsp://h/film".into()],
        },
        film,
        mark: None,
        patience_ns: 1,
        rest_ns: 1,
    };
    let (mut server, own) = UnixStream::pair().unwrap();
    server.set_nonblocking(true).unwrap();
    own.set_nonblocking(true).unwrap();
    let mut line = Line {
        fd: own.into(),
        speaker: publication.speaker(0),
        since_ns: sys::now_ns(),
        unsent: Vec::new(),
        sent: 0,
        blocked_ns: None,
        play: None,
    };
    let asked = b"X rtsp://h/ RTSP/1.0\r\nCSeq: 1\r\n\r\n";
    let little = asked.repeat(HEARD_MAX / 2 / asked.len());
    server.write_all(&little).unwrap();
    assert_eq!(line.hear(&publication), Ok(()));
    let much = server.write(&asked.repeat(2 * HEARD_MAX / asked.len()));
    assert!(much.unwrap() > HEARD_MAX, "it fits into the socket");
    assert_eq!(line.hear(&publication), Err(Failure::Parse));
    let said = line.speaker.said().unwrap_or_default();
    assert!(said.len() < 3 * HEARD_MAX, "{} B", said.len());
}
