//! Addresses and routes of IPv4, asked for as ip(8) asks the kernel (rtnetlink(7)): an image need not have it.

use std::ffi::CString;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const HEADER_BYTES: usize = 16; // struct nlmsghdr: length, type, flags, sequence, port

/// Switch a device on.
pub fn link_up(device: &str) -> io::Result<()> {
    let up = libc::IFF_UP as u32;
    let mut message = Message::new(libc::RTM_NEWLINK, 0);
    message.bytes(&[libc::AF_UNSPEC as u8, 0, 0, 0]); // struct ifinfomsg: family, padding, type
    message.number(index(device)?);
    message.number(up).number(up); // flags, and which of them change
    message.send()
}

/// Give a device an address.
pub fn add_address(device: &str, address: Ipv4Addr, prefix_length: u8) -> io::Result<()> {
    let mut message = Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    let universe = libc::RT_SCOPE_UNIVERSE;
    message.bytes(&[libc::AF_INET as u8, prefix_length, 0, universe]); // struct ifaddrmsg
    message.number(index(device)?);
    message.attribute(libc::IFA_LOCAL, &address.octets());
    message.attribute(libc::IFA_ADDRESS, &address.octets());
    message.send()
}

/// Reach a neighbour by a device, whatever the device's own address says.
pub fn add_neighbour_route(device: &str, neighbour: Ipv4Addr) -> io::Result<()> {
    let mut message = route(32, libc::RT_SCOPE_LINK);
    message.attribute(libc::RTA_DST, &neighbour.octets());
    message.attribute(libc::RTA_OIF, &index(device)?.to_ne_bytes());
    message.send()
}

/// Reach everybody by a gateway on a device.
pub fn add_default_route(device: &str, gateway: Ipv4Addr) -> io::Result<()> {
    let mut message = route(0, libc::RT_SCOPE_UNIVERSE);
    message.attribute(libc::RTA_GATEWAY, &gateway.octets());
    message.attribute(libc::RTA_OIF, &index(device)?.to_ne_bytes());
    message.send()
}

fn route(prefix_length: u8, scope: u8) -> Message {
    let mut message = Message::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    let (table, protocol, kind) = (libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, libc::RTN_UNICAST);
    message.bytes(&[libc::AF_INET as u8, prefix_length, 0, 0]); // struct rtmsg: and source length, type of service
    message.bytes(&[table, protocol, scope, kind]);
    message.number(0); // flags
    message
}

fn index(device: &str) -> io::Result<u32> {
    let name = CString::new(device)?;
    // SAFETY: the string outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// A request of which the kernel says how it went.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: libc::c_int) -> Message {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut message = Message(vec![0; 4]); // the length, at last
        message
            .bytes(&kind.to_ne_bytes())
            .bytes(&flags.to_ne_bytes());
        message.number(1).number(0); // sequence, port (the kernel's)
        message
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Message {
        self.0.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, number: u32) -> &mut Message {
        self.bytes(&number.to_ne_bytes())
    }

    /// struct rtattr and its value, of 4 bytes as all are here: nothing to pad.
    fn attribute(&mut self, kind: u16, value: &[u8; 4]) -> &mut Message {
        self.bytes(&8u16.to_ne_bytes())
            .bytes(&kind.to_ne_bytes())
            .bytes(value)
    }

    fn send(mut self) -> io::Result<()> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        let socket = socket()?;
        let mut answer = [0u8; 4096];
        // SAFETY: both buffers are valid for the lengths given; the kernel answers to a socket that has no address yet.
        let received = unsafe {
            let (bytes, count) = (self.0.as_ptr().cast(), self.0.len());
            if libc::send(socket.as_raw_fd(), bytes, count, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            libc::recv(
                socket.as_raw_fd(),
                answer.as_mut_ptr().cast(),
                answer.len(),
                0,
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        acknowledged(&answer[..received as usize])
    }
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: the new descriptor has no other owner.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        match libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// What the kernel says of a request: struct nlmsgerr, whose errno is 0 or negative.
fn acknowledged(answer: &[u8]) -> io::Result<()> {
    let kind = answer
        .get(4..6)
        .map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let errno = answer.get(HEADER_BYTES..HEADER_BYTES + 4);
    match (kind.map(libc::c_int::from), errno.map(<[u8; 4]>::try_from)) {
        (Some(libc::NLMSG_ERROR), Some(Ok(bytes))) => match i32::from_ne_bytes(bytes) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        },
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the kernel's answer is none",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_as_the_kernel_takes_it() {
        let mut message = route(32, libc::RT_SCOPE_LINK);
        message.attribute(libc::RTA_DST, &[198, 18, 3, 1]);
        let body = &message.0[HEADER_BYTES..];
        assert_eq!(body[..12], [2, 32, 0, 0, 254, 3, 253, 1, 0, 0, 0, 0]);
        assert_eq!(
            body[12..],
            [8u16.to_ne_bytes(), 1u16.to_ne_bytes(), [198, 18], [3, 1]].concat()[..]
        );
    }

    #[test]
    fn what_the_kernel_says() {
        let say = |kind: u16, errno: i32| {
            let mut answer = vec![0; 4];
            answer.extend(kind.to_ne_bytes());
            answer.resize(HEADER_BYTES, 0);
            answer.extend(errno.to_ne_bytes());
            acknowledged(&answer).map_err(|error| error.raw_os_error())
        };
        assert_eq!(say(2, 0), Ok(()));
        assert_eq!(say(2, -17), Err(Some(17)));
        assert_eq!(say(3, 0), Err(None));
        assert!(acknowledged(&[]).is_err());
    }

    #[test]
    fn a_device_that_is_not_there() {
        assert!(link_up("no-such-device").is_err());
        assert!(link_up("a\0b").is_err());
    }
}
