//! Files that are made here: the content that servers hold, and the proof of the disk's limit by effect.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use virtoll_wire::protocol::{Answer, Reserved};

use crate::agent::{done, failed, Agent, Halt, Outcome};
use crate::paths;

const LINE_BYTES: usize = 16;
const FIRST_LINE: &[u8; LINE_BYTES] = b"100000000000000\n"; // 10^14; 9 x 10^14 such lines are more than any disk
const BLOCK_BYTES: usize = 64 * 1024; // a multiple of a line, written at once
const MODE: u32 = 0o644;

/// Make a file of this length: a piece of the endless text of lines that count up from 10^14, from byte `begin_bytes` on.
pub fn fill(agent: &mut Agent, path: &str, begin_bytes: u64, length_bytes: u64) -> Outcome {
    let remedy = "check the path and the space left on the disk";
    let path = Path::new(path);
    let written = match paths::create(path, libc::O_WRONLY | libc::O_TRUNC, MODE) {
        Ok(mut file) => write_text(agent, &mut file, begin_bytes, length_bytes)?,
        Err(error) => {
            return failed(
                format!("cannot write: {error}"),
                path.to_string_lossy(),
                remedy,
            )
        }
    };
    if let Err(error) = written {
        let _ = paths::remove(path); // a part of it is not what was asked for
        return failed(
            format!("cannot write: {error}"),
            path.to_string_lossy(),
            remedy,
        );
    }
    done()
}

/// Try to have a file of so many bytes in `directory`; nothing is left of it.
///
/// The space is asked for (fallocate); where the file system cannot promise any, it is written.
pub fn reserve(agent: &mut Agent, directory: &str, bytes: u64) -> Outcome {
    let (true, Ok(length)) = (bytes > 0, libc::off_t::try_from(bytes)) else {
        return failed(
            format!("no file has {bytes} bytes"),
            directory,
            "ask for fewer",
        );
    };
    let mut file = match nameless(Path::new(directory)) {
        Ok(file) => file,
        Err(error) => {
            let remedy = "name a directory on the instance's own disk";
            return failed(format!("cannot make a file: {error}"), directory, remedy);
        }
    };
    // SAFETY: allocates blocks to a descriptor that we own.
    let refused = match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } {
        0 => None,
        _ => Some(io::Error::last_os_error()),
    };
    let error = match refused {
        Some(_) if blocks_bytes(&file) == 0 => write_text(agent, &mut file, 0, bytes)?.err(),
        refused => refused,
    };
    Ok(Answer::Reserved(Reserved {
        reserved_bytes: blocks_bytes(&file),
        errno: error.map(|error| error.raw_os_error().unwrap_or(libc::EIO)),
    }))
}

fn nameless(directory: &Path) -> io::Result<fs::File> {
    let name = format!(".virtoll-reserve-{}", std::process::id());
    paths::nameless(&paths::make_directory(directory)?, &name)
}

fn blocks_bytes(file: &fs::File) -> u64 {
    file.metadata()
        .map_or(0, |metadata| metadata.blocks() * 512) // stat(2): always units of 512
}

/// Write a piece of the text. Err(Halt) when the stream ends meanwhile, the inner error when there is no more space.
fn write_text(
    agent: &mut Agent,
    file: &mut fs::File,
    begin_bytes: u64,
    length_bytes: u64,
) -> Result<io::Result<()>, Halt> {
    let (mut text, mut left) = (Text::new(begin_bytes / LINE_BYTES as u64), length_bytes);
    let mut skipped = (begin_bytes % LINE_BYTES as u64) as usize;
    while left > 0 {
        let block = &text.next_block()[std::mem::take(&mut skipped)..];
        let count = left.min(block.len() as u64) as usize;
        if let Err(error) = file.write_all(&block[..count]) {
            return Ok(Err(error));
        }
        left -= count as u64;
        agent.wait(&mut [], Some(Instant::now()))?; // only looks
    }
    Ok(Ok(()))
}

/// The endless text, block by block.
struct Text {
    line: [u8; LINE_BYTES],
    block: Vec<u8>,
}

impl Text {
    /// From this line on, the first being 0.
    fn new(line: u64) -> Text {
        let mut digits = *FIRST_LINE;
        let mut left = line;
        for digit in digits[..LINE_BYTES - 1].iter_mut().rev() {
            let sum = u64::from(*digit - b'0') + left;
            (*digit, left) = (b'0' + (sum % 10) as u8, sum / 10);
        }
        Text {
            line: digits,
            block: Vec::with_capacity(BLOCK_BYTES),
        }
    }

    fn next_block(&mut self) -> &[u8] {
        self.block.clear();
        while self.block.len() < BLOCK_BYTES {
            self.block.extend_from_slice(&self.line);
            self.count_up();
        }
        &self.block
    }

    fn count_up(&mut self) {
        for digit in self.line[..LINE_BYTES - 1].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_counts_over_the_end_of_a_block() {
        let mut text = Text::new(0);
        let mut made = text.next_block().to_vec();
        made.extend_from_slice(text.next_block());
        let lines = 2 * BLOCK_BYTES / LINE_BYTES;
        let told: String = (0..lines)
            .map(|line| format!("{}\n", 100_000_000_000_000_u64 + line as u64))
            .collect();
        assert!(made == told.as_bytes());
        for line in [0, 1, 999, 4095, 8000] {
            let rest = &told.as_bytes()[line * LINE_BYTES..];
            let block = Text::new(line as u64).next_block().to_vec();
            assert!(
                block.starts_with(&rest[..rest.len().min(BLOCK_BYTES)]),
                "{line}"
            );
        }
    }
}
