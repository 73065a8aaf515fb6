//! Media time out of the timestamps of audio and video: how much can be played, that nothing goes back, and that
//! nothing is left out.
//!
//! What can be played ends where the first of the two ends; it begins with the first video that is shown without any
//! before it (a key frame), or with the audio, as long as no video, nor its codec's configuration, has come.

use crate::rtmp::media::Media;
use crate::tally::Failure;

const MS: i64 = 1_000_000;

/// Times are milliseconds on one axis, which does not wrap around.
#[derive(Debug, Default)]
pub struct Timeline {
    /// Between two messages of audio, or of video, at most.
    gap_ms: i64,
    /// The timestamp that came last, and where it lies.
    last: Option<(u32, i64)>,
    audio_ms: Option<i64>,
    video_ms: Option<i64>,
    /// Some came, even if it does not play.
    has_video: bool,
    has_key: bool,
    /// Where play begins.
    begin_ms: Option<i64>,
    got_ms: i64,
}

impl Timeline {
    pub fn new(gap_ms: i64) -> Self {
        Timeline {
            gap_ms,
            ..Timeline::default()
        }
    }

    /// Media came; how much more can be played for it, in nanoseconds.
    pub fn came(&mut self, media: &Media) -> Result<i64, Failure> {
        self.has_video |= media.is_video;
        if !media.plays {
            return Ok(0);
        }
        let at_ms = self.unwrapped(media.timestamp);
        let track = match media.is_video {
            true => &mut self.video_ms,
            false => &mut self.audio_ms,
        };
        let before_ms = track.replace(at_ms).unwrap_or(at_ms);
        if !(0..=self.gap_ms).contains(&(at_ms - before_ms)) {
            return Err(Failure::Timestamps);
        }
        if media.is_key && !self.has_key {
            self.has_key = true;
            self.begin(at_ms);
        }
        let end_ms = match (self.audio_ms, self.video_ms) {
            _ if self.has_video && !self.has_key => return Ok(0),
            (Some(audio_ms), Some(video_ms)) => audio_ms.min(video_ms),
            _ => at_ms,
        };
        let got_ms = end_ms - *self.begin_ms.get_or_insert(at_ms);
        let more_ms = (got_ms - self.got_ms).max(0);
        self.got_ms += more_ms;
        Ok(more_ms * MS)
    }

    /// The first key frame is at `at_ms`. What audio came before it stays, and is not counted again; what is missing
    /// between the two is not counted at all.
    fn begin(&mut self, at_ms: i64) {
        let begin_ms = self.begin_ms.unwrap_or(at_ms);
        self.begin_ms = Some(match at_ms - begin_ms > self.got_ms {
            true => at_ms - self.got_ms,
            false => begin_ms.min(at_ms),
        });
    }

    /// Whether what came is all of media of this length, but for less than a gap.
    pub fn holds(&self, duration_ns: i64) -> bool {
        self.got_ms + self.gap_ms >= duration_ns / MS
    }

    /// Timestamps wrap around: of two, the earlier is the one from which it is the shorter way (specification, 4).
    fn unwrapped(&mut self, timestamp: u32) -> i64 {
        let at_ms = match self.last {
            None => 0,
            Some((last, at_ms)) => at_ms + i64::from(timestamp.wrapping_sub(last) as i32),
        };
        self.last = Some((timestamp, at_ms));
        at_ms
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn audio(timestamp: u32) -> Media {
        Media {
            is_video: false,
            is_key: false,
            plays: true,
            timestamp,
        }
    }

    fn video(timestamp: u32, is_key: bool) -> Media {
        Media {
            is_video: true,
            is_key,
            ..audio(timestamp)
        }
    }

    fn all(media: &[Media]) -> Result<i64, Failure> {
        let mut timeline = Timeline::new(250);
        media.iter().try_fold(0, |sum, media| {
            timeline.came(media).map(|more_ns| sum + more_ns / MS)
        })
    }

    #[test]
    fn what_plays_ends_where_the_first_of_audio_and_video_does() {
        let media = [
            video(0, true),
            audio(0),
            video(40, false),
            audio(23),
            audio(46),
        ];
        assert_eq!(all(&media), Ok(40));
        assert_eq!(all(&media[..4]), Ok(23));
        assert_eq!(all(&[audio(0), audio(23)]), Ok(23), "audio alone");
        assert_eq!(all(&[video(0, true), video(40, false)]), Ok(40));
    }

    #[test]
    fn who_joins_within_a_stream_waits_for_a_key_frame() {
        let media = [
            video(5000, false),
            audio(5003),
            video(5040, false),
            audio(5026),
        ];
        assert_eq!(all(&media), Ok(0));
        let more = [
            video(5080, true),
            audio(5049),
            audio(5100),
            video(5120, false),
        ];
        assert_eq!(all(&[&media[..], &more].concat()), Ok(20));
    }

    #[test]
    fn what_goes_back_or_leaves_a_gap_is_a_failure_also_of_one_alone() {
        let begun = [video(0, true), audio(0), video(240, false), audio(230)];
        assert_eq!(all(&begun), Ok(230));
        for wrong in [
            video(239, false),
            audio(229),
            video(491, false),
            audio(481),
            audio(u32::MAX),
        ] {
            let media = [&begun[..], &[wrong]].concat();
            assert_eq!(all(&media), Err(Failure::Timestamps), "{wrong:?}");
        }
        let right = [video(240, false), audio(480), video(490, false)];
        assert_eq!(all(&[&begun[..], &right].concat()), Ok(480));
    }

    #[test]
    fn what_does_not_play_has_no_time() {
        let header = Media {
            plays: false,
            ..video(0, false)
        };
        assert_eq!(
            all(&[header, video(90_000, true), header, video(90_040, false)]),
            Ok(40)
        );
    }

    #[test]
    fn audio_that_came_before_video_of_the_same_time_is_not_counted_twice() {
        let before = [audio(0), audio(23), audio(69), audio(200)];
        let later = [video(0, true), video(200, false), video(240, false)];
        let media = [&before[..], &later, &[audio(300)]].concat();
        assert_eq!(all(&media), Ok(240));
        let late = [audio(46), audio(69), video(0, true), video(40, false)];
        assert_eq!(all(&late), Ok(40), "the video's beginning is the first");
        // Between them there was nothing to be shown.
        let hole = [
            audio(0),
            audio(200),
            video(100, false),
            audio(400),
            video(300, true),
        ];
        assert_eq!(all(&hole), Ok(200));
        let more = [video(400, false)];
        assert_eq!(all(&[&hole[..], &more].concat()), Ok(300));
    }

    #[test]
    fn audio_alone_does_not_play_where_video_is_announced() {
        let announced = Media {
            plays: false,
            ..video(0, false)
        };
        let media = [announced, audio(0), audio(200), audio(400)];
        assert_eq!(all(&media), Ok(0));
        let more = [video(380, true), video(420, false), audio(430)];
        assert_eq!(all(&[&media[..], &more].concat()), Ok(40));
    }

    #[test]
    fn timestamps_wrap_around() {
        let media = [
            video(u32::MAX - 19, true),
            video(20, false),
            video(60, false),
        ];
        assert_eq!(all(&media), Ok(80));
    }

    #[test]
    fn whole_is_what_lacks_less_than_a_gap() {
        let mut timeline = Timeline::new(250);
        for at_ms in (0..=1000).step_by(100) {
            timeline.came(&video(at_ms, true)).unwrap();
        }
        assert!(timeline.holds(1250 * MS));
        assert!(!timeline.holds(1251 * MS));
    }

    proptest! {
        #[test]
        fn what_can_be_played_never_shrinks_and_is_never_more_than_came(
            steps in prop::collection::vec((0u32..300, any::<bool>(), any::<bool>()), 1..200), first: u32
        ) {
            let (mut timeline, mut at, mut got_ms) = (Timeline::new(250), first, 0);
            for (step, is_video, is_key) in steps {
                at = at.wrapping_add(step);
                let media = if is_video { video(at, is_key) } else { audio(at) };
                let Ok(more_ns) = timeline.came(&media) else { return Ok(()) };
                prop_assert!(more_ns >= 0);
                got_ms += more_ns / MS;
                prop_assert!(got_ms <= i64::from(at.wrapping_sub(first)));
            }
        }
    }
}
