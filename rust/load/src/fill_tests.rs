use super::*;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, SocketAddrV4, TcpListener};

fn spec(address: SocketAddrV4, keys: u64) -> FillSpec {
    FillSpec {
        target: Server { address },
        value_bytes: 600,
        keys,
        timeout_ns: 60_000_000_000,
    }
}

/// Answer so many SETs by `reply`, and DBSIZE by `size`; what was told to be set is returned.
fn filled(keys: u64, reply: &'static [u8], size: &'static [u8]) -> (Result<Filled, Failed>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        panic!("IPv4 expected")
    };
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let mut names = std::collections::BTreeSet::new();
        let mut out = &stream;
        while let Some(line) = lines.next() {
            if line == "DBSIZE" {
                let _ = out.write_all(size);
            } else if line == "SET" {
                names.insert(lines.nth(1).unwrap());
                let _ = out.write_all(reply);
            }
        }
        names.len()
    });
    (run(&spec(address, keys)), server.join().unwrap())
}

#[test]
fn every_key_is_set_and_counted() {
    let (report, names) = filled(1000, b"+OK\r\n", b":1000\r\n");
    assert_eq!((report.unwrap().keys, names), (1000, 1000));
}

#[test]
fn what_the_server_says_against_it_is_told() {
    let why = |keys, reply, size| filled(keys, reply, size).0.unwrap_err().0;
    let said = why(3, b"-OOM command not allowed\r\n", b"");
    assert!(said.contains("\"OOM command not allowed\""), "{said}");
    let said = why(3, b"+OK\r\n", b":5\r\n");
    assert!(
        said.contains("it holds 5 now; give it an empty database"),
        "{said}"
    );
    let said = why(3, b"hello\r\n", b"");
    assert!(said.contains("no reply of Redis"), "{said}");
    let said = why(3, b"+OK\r\n", b"-NOPERM\r\n");
    assert!(said.contains("-NOPERM"), "{said}");
    let Failed(said) = run(&spec("127.0.0.1:1".parse().unwrap(), 0)).unwrap_err();
    assert!(said.contains("keys must be from 1"), "{said}");
}
