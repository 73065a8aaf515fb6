use std::net::{SocketAddr, TcpListener};

use super::*;
use crate::publish::rtmp::Rtmp;
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
