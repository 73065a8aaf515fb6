//! A film of encoded frames, out of an IVF file (a header of 32 bytes; before each frame its length and time stamp, 12
//! bytes, as libvpx writes it), of a codec that participants send (`codec.rs`). Frames are kept once for all who send them.

use std::path::Path;
use std::sync::Arc;

use virtoll_generator::Failed;

use super::codec::Codec;

const SECOND_NS: u128 = 1_000_000_000;
const MOST_BYTES: u64 = 64 << 20;
const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 12;

#[derive(Clone, Debug)]
pub struct Frame {
    /// From the film's beginning.
    pub at_ns: i64,
    pub is_key: bool,
    pub bytes: Arc<[u8]>,
}

/// Frames in the order in which they are sent; the first is a key frame.
#[derive(Debug)]
pub struct Film {
    pub codec: Codec,
    pub frames: Vec<Frame>,
    /// Until it begins anew.
    pub duration_ns: i64,
}

impl Film {
    pub fn read(path: &Path) -> Result<Self, Failed> {
        let failed = |why: &str| Failed(format!("the film {}: {why}", path.display()));
        let length = std::fs::metadata(path).map(|known| known.len());
        match length {
            Ok(length) if length > MOST_BYTES => {
                return Err(failed("it is over 64 MiB: take a shorter one"))
            }
            Ok(_) => {}
            Err(error) => return Err(failed(&error.to_string())),
        }
        let bytes = std::fs::read(path).map_err(|error| failed(&error.to_string()))?;
        Film::parsed(&bytes).map_err(failed)
    }

    pub fn parsed(bytes: &[u8]) -> Result<Self, &'static str> {
        let header = bytes
            .first_chunk::<HEADER_BYTES>()
            .filter(|header| &header[..4] == b"DKIF")
            .ok_or("it is no IVF file")?;
        let codec = Codec::named(&header[8..12]).ok_or("it is neither VP8 nor H.264")?;
        let (per_s, unit) = (number(&header[16..20]), number(&header[20..24]));
        if per_s == 0 || unit == 0 {
            return Err("its time base is 0");
        }
        let mut rest = bytes
            .get(number(&header[6..8]) as usize..)
            .ok_or("it ends within its header")?;
        let mut frames: Vec<Frame> = Vec::new();
        while let Some((head, body)) = rest.split_first_chunk::<FRAME_HEADER_BYTES>() {
            let length = number(&head[..4]) as usize;
            let frame = body.get(..length).ok_or("it ends within a frame")?;
            let at_ns =
                u128::from(number(&head[4..])) * u128::from(unit) * SECOND_NS / u128::from(per_s);
            let at_ns = i64::try_from(at_ns)
                .ok()
                .filter(|ns| *ns <= 1 << 50)
                .ok_or("it is longer than twelve days")?;
            if frames.last().is_some_and(|last| at_ns <= last.at_ns) {
                return Err(
                    "its time stamps do not ascend: encode it without alternate reference frames",
                );
            }
            frames.push(Frame {
                at_ns,
                is_key: codec.is_key(frame).ok_or("a frame holds none")?,
                bytes: frame.into(),
            });
            rest = &body[length..];
        }
        Film::of(codec, frames)
    }

    fn of(codec: Codec, mut frames: Vec<Frame>) -> Result<Self, &'static str> {
        let begin_ns = match frames.first() {
            Some(first) if first.is_key => first.at_ns,
            _ => return Err("it does not begin with a key frame"),
        };
        frames.iter_mut().for_each(|frame| frame.at_ns -= begin_ns);
        let last_ns = frames[frames.len() - 1].at_ns;
        let gaps = frames.len() as i64 - 1;
        let duration_ns = match gaps {
            0 => 0,
            gaps => last_ns + last_ns / gaps,
        };
        if duration_ns < SECOND_NS as i64 {
            return Err("it is shorter than a second");
        }
        Ok(Film {
            codec,
            frames,
            duration_ns,
        })
    }

    /// The key frame after this one, or this; the film begins anew after its last.
    pub fn key_from(&self, index: usize) -> usize {
        let key = self
            .frames
            .iter()
            .skip(index)
            .position(|frame| frame.is_key);
        key.map_or(0, |ahead| index + ahead)
    }
}

/// A little-endian number of at most eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
pub mod tests {
    use proptest::prelude::*;

    use super::*;

    /// So many frames a second, for so many; every fifth is a key frame, and longer.
    pub fn ivf(per_s: u32, frames: u64) -> Vec<u8> {
        let frame = |index: u64| {
            let is_key = index.is_multiple_of(5);
            let mut frame = vec![index as u8; if is_key { 3000 } else { 700 }];
            frame[0] = u8::from(!is_key);
            frame
        };
        ivf_of(b"VP80", per_s, (0..frames).map(frame).collect())
    }

    pub fn ivf_of(four_cc: &[u8; 4], per_s: u32, frames: Vec<Vec<u8>>) -> Vec<u8> {
        let mut bytes = [b"DKIF\0\0\x20\0", &four_cc[..]].concat();
        bytes.extend([64, 0, 48, 0]);
        bytes.extend(per_s.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend((frames.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        for (index, frame) in frames.into_iter().enumerate() {
            bytes.extend((frame.len() as u32).to_le_bytes());
            bytes.extend((index as u64 + 7).to_le_bytes());
            bytes.extend(frame);
        }
        bytes
    }

    #[test]
    fn frames_have_their_times_and_key_frames_are_known() {
        let film = Film::parsed(&ivf(10, 20)).unwrap();
        assert_eq!(film.frames.len(), 20);
        assert_eq!(film.frames[3].at_ns, 300_000_000);
        assert_eq!(film.duration_ns, 2_000_000_000);
        assert_eq!(
            [0, 1, 5, 15, 16].map(|index| film.key_from(index)),
            [0, 5, 5, 15, 0]
        );
    }

    #[test]
    fn what_is_no_film_is_refused() {
        let good = ivf(10, 20);
        let wrong = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Film::parsed(&bytes).unwrap_err()
        };
        assert_eq!(wrong(0, b'X'), "it is no IVF file");
        assert_eq!(wrong(10, b'9'), "it is neither VP8 nor H.264");
        assert_eq!(wrong(16, 0), "its time base is 0");
        assert_eq!(wrong(44, 1), "it does not begin with a key frame");
        assert_eq!(
            Film::parsed(&ivf(10, 9)).unwrap_err(),
            "it is shorter than a second"
        );
        assert_eq!(
            Film::parsed(&good[..good.len() - 1]).unwrap_err(),
            "it ends within a frame"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_film_or_refused(
            cuts in prop::collection::vec((0usize..4000, any::<u8>()), 0..20), length in 0usize..4000
        ) {
            let mut bytes = ivf(10, 20);
            for (at, byte) in cuts {
                bytes[at] = byte;
            }
            bytes.truncate(length);
            if let Ok(film) = Film::parsed(&bytes) {
                prop_assert!(film.frames[0].is_key);
                prop_assert!(film.frames.windows(2).all(|two| two[0].at_ns < two[1].at_ns));
            }
        }
    }
}
