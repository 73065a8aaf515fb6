//! Whether somebody listens on a port, by the kernel's list of sockets in this network namespace.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use virtoll_wire::protocol::{Answer, Listening, Transport};

use crate::agent::{failed, Outcome};

/// A socket that listens: over IPv4 on any address, over IPv6 where it takes IPv4 too (on `::`, or a mapped address).
///
/// It reads only as far as the first: a namespace that has served a load holds tens of thousands in TIME_WAIT.
pub fn listening(port: u16, protocol: Transport) -> Outcome {
    let (name, state) = match protocol {
        Transport::Tcp => ("tcp", "0A"), // include/net/tcp_states.h: TCP_LISTEN
        Transport::Udp => ("udp", "07"), // TCP_CLOSE: bound, connected to nobody
    };
    for (path, may_lack) in [
        (format!("/proc/net/{name}"), false),
        (format!("/proc/net/{name}6"), true),
    ] {
        match File::open(&path).and_then(|file| holds(BufReader::new(file), port, state)) {
            Ok(true) => return Ok(Answer::Listening(Listening { listening: true })),
            Ok(false) => {}
            Err(error) if may_lack && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let remedy = "mount proc on /proc";
                return failed(format!("cannot read: {error}"), path, remedy);
            }
        }
    }
    Ok(Answer::Listening(Listening { listening: false }))
}

fn holds(table: impl BufRead, port: u16, state: &str) -> io::Result<bool> {
    for line in table.lines() {
        if listens(&line?, port, state) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a line (`sl local_address:port remote_address:port state ...`, all hex) is of such a socket.
fn listens(line: &str, port: u16, state: &str) -> bool {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (Some(local), Some(remote), Some(found)) = (fields.next(), fields.next(), fields.next())
    else {
        return false;
    };
    let Some((address, local_port)) = local.rsplit_once(':') else {
        return false;
    };
    found == state
        && u16::from_str_radix(local_port, 16) == Ok(port)
        && remote.bytes().all(|byte| matches!(byte, b'0' | b':'))
        && takes_ipv4(address)
}

/// The kernel prints an address as words of the machine's own byte order.
fn takes_ipv4(address: &str) -> bool {
    match (address.len(), address.get(..16), address.get(16..24)) {
        (8, ..) => true,
        (32, Some(first), Some(third)) if first.bytes().all(|byte| byte == b'0') => {
            let is_mapped = u32::from_str_radix(third, 16)
                .is_ok_and(|word| word.to_ne_bytes() == [0, 0, 255, 255]);
            is_mapped || address.bytes().all(|byte| byte == b'0')
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000
   1: 00000000:1F91 0100007F:0050 01 00000000:00000000 00:00000000
   2: 00000000:1F92 00000000:0000 07 00000000:00000000 00:00000000
   3: 00000000000000000000000000000000:1F93 00000000000000000000000000000000:0000 0A
   4: 0000000000000000FFFF00000100007F:1F94 00000000000000000000000000000000:0000 0A
   5: 00000000000000000000000001000000:1F95 00000000000000000000000000000000:0000 0A
   6: 000080FE00000000FF005450B6BE7E14:1F96 00000000000000000000000000000000:0000 0A
   7
";

    fn found(port: u16, state: &str) -> bool {
        holds(TABLE.as_bytes(), port, state).unwrap()
    }

    #[test]
    fn who_listens_on_a_port() {
        assert!(found(0x1F90, "0A"));
        assert!(!found(0x1F90, "07"));
        assert!(!found(0x1F91, "0A") && !found(0x1F91, "01"), "connected");
        assert!(found(0x1F92, "07") && !found(0x1F92, "0A"));
        assert!(!found(80, "0A"));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn who_listens_by_ipv6_and_takes_ipv4() {
        assert!(found(0x1F93, "0A"), "::");
        assert!(found(0x1F94, "0A"), "::ffff:127.0.0.1");
        assert!(!found(0x1F95, "0A"), "::1");
        assert!(!found(0x1F96, "0A"), "fe80::");
    }

    #[test]
    fn a_table_is_read_no_further_than_the_first() {
        let endless = io::repeat(b'\n');
        let table = io::Read::chain(TABLE.as_bytes(), endless);
        assert!(holds(BufReader::new(table), 0x1F90, "0A").unwrap());
    }
}
