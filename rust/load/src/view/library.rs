//! Playlists that the viewers of a thread hold: all get the same ones, and each is held once.

use std::collections::HashMap;
use std::rc::Rc;

use virtoll_generator::Failed;

use super::playlist::Playlist;
use super::segmented::Format;
use crate::tally::Failure;

/// All playlists together that viewers hold at a time, by their texts or, where that is more, by what was read of them;
/// in memory they are a few times as large. Where a server gives each viewer another, this is the generator's own bound.
const MOST_BYTES: usize = 64 << 20;
/// From so much on it is worth a look what nobody holds any more.
const LEAST_BYTES: usize = 1 << 20;

pub struct Library {
    read: HashMap<Vec<u8>, Rc<Playlist>>,
    bytes: usize,
    tidy_at_bytes: usize,
    most_bytes: usize,
    is_full: bool,
}

impl Default for Library {
    fn default() -> Self {
        Library::with_room(MOST_BYTES)
    }
}

impl Library {
    pub fn with_room(most_bytes: usize) -> Self {
        Library {
            read: HashMap::new(),
            bytes: 0,
            tidy_at_bytes: 0,
            most_bytes,
            is_full: false,
        }
    }

    /// Why nothing more can be told of the server, if so: there was one playlist too many for the generator.
    pub fn lacks_room(&self) -> Option<Failed> {
        let held = self.read.len();
        let most_bytes = self.most_bytes;
        self.is_full.then(|| {
            Failed(format!(
                "the generator holds no more playlists than {most_bytes} bytes of them at a time (in each thread), and its \
                 viewers were given more, all different ({held} are held): ask for fewer viewers, or have the server \
                 give all of them the same"
            ))
        })
    }

    /// What this text says, of that format.
    pub fn parsed(&mut self, text: Vec<u8>, format: Format) -> Result<Rc<Playlist>, Failure> {
        if let Some(playlist) = self.read.get(&text) {
            return Ok(playlist.clone());
        }
        let playlist = Rc::new(format.parse(&text).map_err(|_| Failure::Parse)?);
        let bytes = size(&text, &playlist);
        if self.bytes + bytes > self.tidy_at_bytes {
            self.tidy();
            if self.bytes + bytes > self.most_bytes {
                self.is_full = true; // whoever drives the viewer ends it all
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
        self.tidy_at_bytes =
            (2 * self.bytes).clamp(LEAST_BYTES.min(self.most_bytes), self.most_bytes);
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
    fn a_server_that_makes_up_another_for_each_is_too_much_for_the_generator() {
        let mut library = Library::default();
        let told =
            (0..1000).map(|number| library.parsed(text(number, playlist::MOST_BYTES), Format::Hls));
        let held: Vec<_> = told.take_while(Result::is_ok).collect();
        assert_eq!(held.len(), MOST_BYTES / playlist::MOST_BYTES);
        let Some(Failed(why)) = library.lacks_room() else {
            panic!("it has none")
        };
        assert!(why.starts_with("the generator holds no more playlists than 67108864 bytes"));
        assert!(why.contains("(64 are held)"), "{why}");
        drop(held);
        assert!(library
            .parsed(text(1000, playlist::MOST_BYTES), Format::Hls)
            .is_ok());
    }
}
