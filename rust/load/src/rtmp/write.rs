//! Messages into the stream of chunks (5.3): each begins with a whole header.

use super::kind;

/// Chunk streams of ours: that of control messages is fixed (5.4), the others may be any.
pub const CONTROL: u8 = 2;
pub const COMMANDS: u8 = 3;
pub const AUDIO: u8 = 4;
pub const STREAM: u8 = 5;
pub const VIDEO: u8 = 6;

const EXTENDED: u32 = 0xff_ffff;

/// What a message is, besides its payload.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The chunk stream: 2 to 63.
    pub chunks: u8,
    pub kind: u8,
    /// The message stream; 0: of the connection.
    pub stream: u32,
    pub timestamp: u32,
}

/// Append a message to `out`, in chunks of at most so much payload. It must be shorter than 16 MiB.
pub fn message(out: &mut Vec<u8>, head: Head, payload: &[u8], chunk_bytes: usize) {
    let is_extended = head.timestamp >= EXTENDED;
    let extended = head.timestamp.to_be_bytes();
    out.push(head.chunks);
    out.extend_from_slice(&head.timestamp.min(EXTENDED).to_be_bytes()[1..]);
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.push(head.kind);
    out.extend_from_slice(&head.stream.to_le_bytes());
    if is_extended {
        out.extend_from_slice(&extended);
    }
    for (number, chunk) in payload.chunks(chunk_bytes).enumerate() {
        if number > 0 {
            out.push(0xc0 | head.chunks);
            if is_extended {
                out.extend_from_slice(&extended);
            }
        }
        out.extend_from_slice(chunk);
    }
}

/// A control message: numbers of four bytes each.
pub fn control(out: &mut Vec<u8>, kind: u8, numbers: &[u32]) {
    let payload: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect();
    message(out, of_connection(kind), &payload, super::CHUNK_BYTES);
}

/// A user control message (7.1.7): an event, and numbers.
pub fn user_control(out: &mut Vec<u8>, event: u16, numbers: &[u32]) {
    let mut payload = event.to_be_bytes().to_vec();
    payload.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    message(
        out,
        of_connection(kind::USER_CONTROL),
        &payload,
        super::CHUNK_BYTES,
    );
}

fn of_connection(kind: u8) -> Head {
    Head {
        chunks: CONTROL,
        kind,
        stream: 0,
        timestamp: 0,
    }
}
