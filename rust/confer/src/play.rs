//! A film that is sent: which frame is due when. It is played round and round; asked for a key frame, it goes on with its
//! next one.

use super::film::{Film, Frame};

/// Between two key frames for the asking (libwebrtc's EncoderRtcpFeedback).
const ASKED_EVERY_NS: i64 = 300_000_000;
const CLOCK_HZ: i128 = 90_000;

/// Times are nanoseconds, by CLOCK_MONOTONIC.
pub struct Play<'a> {
    film: &'a Film,
    /// The next frame.
    index: usize,
    /// When the film's time 0 was.
    begin_ns: i64,
    /// When it was first sent.
    first_ns: i64,
    is_asked: bool,
    jumped_ns: i64,
}

impl<'a> Play<'a> {
    /// From the key frame nearest to this place of the film on, in millionths.
    pub fn new(film: &'a Film, place: u64, now_ns: i64) -> Self {
        let index = film.key_from((place as usize % 1_000_000) * film.frames.len() / 1_000_000);
        Play {
            film,
            index,
            begin_ns: now_ns - film.frames[index].at_ns,
            first_ns: now_ns,
            is_asked: false,
            jumped_ns: i64::MIN,
        }
    }

    pub fn due_ns(&self) -> i64 {
        self.begin_ns + self.film.frames[self.index].at_ns
    }

    /// The next frame is to be a key frame.
    pub fn ask(&mut self) {
        self.is_asked = true;
    }

    /// The frame that is due by now, when it was due, and its time stamp (of 90 kHz, counting on).
    pub fn frame(&mut self, now_ns: i64) -> Option<(&'a Frame, i64, u64)> {
        let due_ns = self.due_ns();
        if due_ns > now_ns {
            return None;
        }
        if self.is_asked && due_ns.saturating_sub(self.jumped_ns) >= ASKED_EVERY_NS {
            self.is_asked = false;
            self.jumped_ns = due_ns;
            self.index = self.film.key_from(self.index);
            self.begin_ns = due_ns - self.film.frames[self.index].at_ns;
        }
        let frame = &self.film.frames[self.index];
        self.index += 1;
        if self.index == self.film.frames.len() {
            self.index = 0;
            self.begin_ns += self.film.duration_ns;
        }
        let since_ns = i128::from(due_ns - self.first_ns);
        Some((frame, due_ns, (since_ns * CLOCK_HZ / 1_000_000_000) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::super::film::tests::ivf;
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn a_film_is_played_round_and_round_at_its_pace() {
        let film = Film::parsed(&ivf(10, 10)).unwrap();
        let mut play = Play::new(&film, 0, 7);
        for number in 0..25 {
            let due_ns = 7 + number * 100 * MS;
            assert!(play.frame(due_ns - 1).is_none());
            let (frame, due, timestamp) = play.frame(due_ns).unwrap();
            assert_eq!((due, timestamp), (due_ns, number as u64 * 9000));
            assert_eq!(frame.is_key, number % 5 == 0);
        }
    }

    #[test]
    fn asked_for_a_key_frame_it_goes_on_with_the_next_but_not_too_often() {
        let film = Film::parsed(&ivf(10, 10)).unwrap();
        let mut play = Play::new(&film, 0, 0);
        let mut keys = Vec::new();
        for number in 0..20 {
            if [2, 3, 17].contains(&number) {
                play.ask();
            }
            let (frame, due_ns, _) = play.frame(number * 100 * MS).unwrap();
            assert_eq!(due_ns, number * 100 * MS);
            keys.extend(frame.is_key.then_some(number));
        }
        assert_eq!(keys, [0, 2, 5, 10, 15, 17]);
    }

    #[test]
    fn it_begins_at_a_key_frame_wherever_it_begins() {
        let film = Film::parsed(&ivf(10, 10)).unwrap();
        for place in [0, 1, 499_999, 500_000, 999_999, u64::MAX] {
            let (frame, due_ns, timestamp) = Play::new(&film, place, 5).frame(5).unwrap();
            assert!(frame.is_key);
            assert_eq!((due_ns, timestamp), (5, 0));
        }
    }
}
