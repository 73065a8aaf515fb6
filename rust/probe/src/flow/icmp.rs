//! Echo requests and their answers: the messages (RFC 792), and the sockets they go through.

use std::io::{self, ErrorKind};
use std::mem::size_of;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
/// Type, code, checksum, identifier, sequence number.
pub const ICMP_BYTES: usize = 8;
/// Which run and which request it is, in the payload: the sequence number of 16 bits is not enough.
pub const MARK_BYTES: usize = 16;

/// A socket for echo requests, and whether it is a raw one: the kernel grants the other kind to groups (icmp(7)).
pub fn socket() -> io::Result<(UdpSocket, bool)> {
    let open = |kind| {
        // SAFETY: `socket` returns a descriptor that nobody else owns.
        unsafe {
            let fd = libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, libc::IPPROTO_ICMP);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(UdpSocket::from(OwnedFd::from_raw_fd(fd)))
        }
    };
    match open(libc::SOCK_DGRAM) {
        Ok(socket) => Ok((socket, false)),
        Err(_) => open(libc::SOCK_RAW).map(|socket| (socket, true)),
    }
}

/// Whether there is something to read within `patience`.
pub fn readable_within(socket: &impl AsRawFd, patience: Duration) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let time = libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos() as libc::c_long,
    };
    // SAFETY: one valid pollfd and a valid time; no signal mask.
    match unsafe { libc::ppoll(&mut poll, 1, &time, std::ptr::null()) } {
        0 => Ok(false),
        1.. => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

/// Errors that say of one request that it is lost: no room for it, or a router's word that there is no way.
pub fn is_passing(error: &io::Error) -> bool {
    let unreachable = [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENOBUFS];
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::ConnectionRefused
    ) || error
        .raw_os_error()
        .is_some_and(|code| unreachable.contains(&code))
}

/// Make the message request `number` of this run.
pub fn fill(message: &mut [u8], token: u64, number: u64) {
    message[..ICMP_BYTES].fill(0);
    message[0] = ECHO_REQUEST;
    message[4..6].copy_from_slice(&(token as u16).to_be_bytes());
    message[6..8].copy_from_slice(&(number as u16).to_be_bytes());
    message[8..16].copy_from_slice(&token.to_le_bytes());
    message[16..24].copy_from_slice(&number.to_le_bytes());
    let sum = checksum(message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

/// The payload of an echo reply; None of anything else. A raw socket's messages begin with their IP header.
pub fn payload(bytes: &[u8], raw: bool) -> Option<&[u8]> {
    let header_bytes = if raw {
        usize::from(bytes.first()? & 0xF) * 4
    } else {
        0
    };
    let message = bytes.get(header_bytes..)?;
    (*message.first()? == ECHO_REPLY).then_some(message.get(ICMP_BYTES..)?)
}

/// The number of the request that this answers, if it is one of this run.
pub fn answered(payload: &[u8], token: u64) -> Option<u64> {
    let word = |at: usize| {
        Some(u64::from_le_bytes(
            payload.get(at..at + size_of::<u64>())?.try_into().ok()?,
        ))
    };
    (word(0)? == token).then(|| word(8)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_message_is_read_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..100), raw: bool, token: u64, number: u64,
        ) {
            if let Some(payload) = payload(&bytes, raw) {
                answered(payload, token);
            }
            let mut message = bytes;
            message.resize(message.len().max(ICMP_BYTES + MARK_BYTES), 1);
            fill(&mut message, token, number);
            prop_assert_eq!(checksum(&message), 0);
            message[0] = ECHO_REPLY;
            prop_assert_eq!(answered(payload(&message, false).unwrap(), token), Some(number));
        }
    }

    #[test]
    fn a_request_has_its_checksum_and_its_answer_its_number() {
        let mut message = [1; ICMP_BYTES + MARK_BYTES + 1];
        fill(&mut message, 0xABCD_EF01_2345, 70_000);
        assert_eq!(checksum(&message), 0); // over a message with its checksum (RFC 1071)
        assert_eq!(payload(&message, false), None);
        message[0] = ECHO_REPLY;
        let mark = payload(&message, false).unwrap();
        assert_eq!(answered(mark, 0xABCD_EF01_2345), Some(70_000));
        assert_eq!(answered(mark, 1), None);
        let raw = [&[0x46; 24], &message[..]].concat();
        assert_eq!(payload(&raw, true), Some(mark));
        assert_eq!(payload(&[0x4F, 0], true), None);
        assert_eq!(payload(&[], true), None);
    }
}
