//! A counted run of bytes over TCP, each message of which has the same known contents.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use super::wire::Tally;
use crate::windows::now_ns;

/// As much as one read takes at most.
const READ_BYTES: usize = 256 << 10;

/// The contents of a message: no two neighbouring stretches are alike.
pub fn message(size_bytes: usize) -> Vec<u8> {
    let mix = |place: usize| (place as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    (1..=size_bytes).map(|place| mix(place) as u8).collect()
}

/// A place to read into, touched.
pub fn buffer() -> Vec<u8> {
    vec![1; READ_BYTES]
}

/// Send `count` messages.
pub fn send(mut stream: &TcpStream, count: u64, message: &[u8]) -> io::Result<()> {
    for _ in 0..count {
        stream.write_all(message)?;
    }
    Ok(())
}

/// Receive `total_bytes` of such messages. The first and the last byte of each read must be those of their places.
pub fn receive(
    mut stream: &TcpStream,
    total_bytes: u64,
    message: &[u8],
    buffer: &mut [u8],
) -> io::Result<Tally> {
    let mut tally = Tally::default();
    while tally.count < total_bytes {
        let most = (total_bytes - tally.count).min(buffer.len() as u64) as usize;
        let got = match stream.read(&mut buffer[..most]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue, // it was stopped, and goes on
            read => read?,
        };
        let stamp_ns = now_ns();
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for place in [0, got - 1] {
            let expected = message[((tally.count + place as u64) % message.len() as u64) as usize];
            tally.wrong += u64::from(buffer[place] != expected);
        }
        tally.count += got as u64;
        if tally.first == 0 {
            (tally.first, tally.start_ns) = (tally.count, stamp_ns);
        }
        tally.end_ns = stamp_ns;
    }
    tally.now_ns = now_ns();
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn what_was_sent_is_counted_and_found_right() {
        let (near, far) = pair();
        let message = message(1000);
        let sent = message.clone();
        let sender = std::thread::spawn(move || send(&far, 500, &sent).unwrap());
        let tally = receive(&near, 500_000, &message, &mut buffer()).unwrap();
        sender.join().unwrap();
        assert_eq!((tally.count, tally.wrong), (500_000, 0));
        assert!(tally.first > 0 && tally.first <= tally.count);
    }

    #[test]
    fn other_contents_and_an_early_end_are_noticed() {
        let (near, far) = pair();
        let message = message(1000);
        let mut shifted = message.clone();
        shifted.rotate_left(1);
        send(&far, 1, &shifted).unwrap();
        drop(far);
        assert!(receive(&near, 1000, &message, &mut buffer()).unwrap().wrong > 0);
        let early = receive(&near, 1, &message, &mut buffer()).unwrap_err();
        assert_eq!(early.kind(), io::ErrorKind::UnexpectedEof);
    }
}
