//! Playlists that the viewers of a thread hold: all get the same ones, and each is held once.

use std::collections::HashMap;
use std::rc::Rc;

use super::playlist::Playlist;
use super::segmented::Format;
use crate::tally::Failure;

/// All playlists together that viewers hold at a time, by their texts or, where that is more, by what was read of them;
/// in memory they are a few times as large. More are made up.
const MOST_BYTES: usize = 64 << 20;
/// From so much on it is worth a look what nobody holds any more.
const LEAST_BYTES: usize = 1 << 20;

#[derive(Default)]
pub struct Library {
    read: HashMap<Vec<u8>, Rc<Playlist>>,
    bytes: usize,
    tidy_at_bytes: usize,
}

impl Library {
    /// What this text says, of that format.
    pub fn parsed(&mut self, text: Vec<u8>, format: Format) -> Result<Rc<Playlist>, Failure> {
        if let Some(playlist) = self.read.get(&text) {
            return Ok(playlist.clone());
        }
        let playlist = Rc::new(format.parse(&text).map_err(|_| Failure::Parse)?);
        let bytes = size(&text, &playlist);
        if self.bytes + bytes > self.tidy_at_bytes {
            self.tidy();
            if self.bytes + bytes > MOST_BYTES {
                return Err(Failure::Parse);
            }
        }
        self.bytes += bytes;
        self.read.insert(text, playlist.clone());
        Ok(playlist)
    }

    /// Forget what nobody holds. It is looked for when there is twice as much as was kept: that costs little for each.
    fn tidy(&mut self) {
        self.read
            .retain(|_, playlist| Rc::strong_count(playlist) > 1);
        let sizes = self
            .read
            .iter()
            .map(|(text, playlist)| size(text, playlist));
        self.bytes = sizes.sum();
        self.tidy_at_bytes = (2 * self.bytes).clamp(LEAST_BYTES, MOST_BYTES);
    }
}

fn size(text: &[u8], playlist: &Playlist) -> usize {
    text.len().max(playlist.held_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::playlist;

    fn text(number: usize, bytes: usize) -> Vec<u8> {
        let head = format!("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#{number}");
        let mut text = head.into_bytes();
        text.resize(bytes, b'#');
        text
    }

    #[test]
    fn what_viewers_hold_is_held_once() {
        let mut library = Library::default();
        let held: Vec<_> = (0..30)
            .map(|number| library.parsed(text(number, 100_000), Format::Hls).unwrap())
            .collect();
        for (number, first) in held.iter().enumerate() {
            let again = library.parsed(text(number, 100_000), Format::Hls).unwrap();
            assert!(Rc::ptr_eq(first, &again), "{number}");
        }
    }

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let mut library = Library::default();
        for number in 0..100 {
            library.parsed(text(number, 100_000), Format::Hls).unwrap();
        }
        assert!(library.bytes <= 2 * LEAST_BYTES);
    }

    #[test]
    fn a_server_that_makes_up_another_for_each_is_refused() {
        let mut library = Library::default();
        let told =
            (0..1000).map(|number| library.parsed(text(number, playlist::MOST_BYTES), Format::Hls));
        let held: Vec<_> = told.take_while(Result::is_ok).collect();
        assert_eq!(held.len(), MOST_BYTES / playlist::MOST_BYTES);
        drop(held);
        assert!(library
            .parsed(text(1000, playlist::MOST_BYTES), Format::Hls)
            .is_ok());
    }
}
