//! What a session description (RFC 4566, as RFC 2326, appendix C uses it) tells a viewer: the tracks, what each is asked
//! for by, the clock of its timestamps, and how long the whole is.
//!
//! All other lines are passed over, right or wrong: whoever does not decode need not refuse a server for its origin line.

use crate::rtsp::is_url;
use crate::tally::Failure;

pub const MOST_TRACKS: usize = 8;
const MOST_CLOCK: u32 = 1_000_000_000;
/// Longer than any film: so long a time can be added up.
const MOST_SECONDS: f64 = 1e7;

/// A stream of media of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// What it is set up by.
    pub url: String,
    pub payload_type: u8,
    /// Of its timestamps, ticks in a second.
    pub clock_hz: u32,
    /// Whether its receivers may report (`b=RR:0` forbids it, RFC 3556).
    pub may_report: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presentation {
    /// What the whole is played by.
    pub url: String,
    /// Audio and video; there is at least one.
    pub tracks: Vec<Track>,
    /// As the server tells; None: it does not, or there is no end.
    pub length_ns: Option<i64>,
}

/// Read a description that came for `base`, which relative URLs add to, as `base/control`: all servers mean it so.
pub fn parse(text: &[u8], base: &str) -> Result<Presentation, Failure> {
    let text = String::from_utf8_lossy(text);
    let mut whole = Presentation {
        url: base.to_owned(),
        tracks: Vec::new(),
        length_ns: None,
    };
    let mut media = None;
    for line in text.lines() {
        let line = line.trim_end();
        if let Some(told) = line.strip_prefix("m=") {
            take(&mut whole, media.take())?;
            media = Some(Media::new(told, base)?);
        } else if let Some(media) = &mut media {
            media.line(line, base)?;
        } else if let Some(control) = line.strip_prefix("a=control:") {
            whole.url = resolved(base, control)?;
        } else if let Some(range) = line.strip_prefix("a=range:") {
            whole.length_ns = end_ns(range);
        }
    }
    take(&mut whole, media.take())?;
    match whole.tracks.is_empty() {
        true => Err(Failure::Parse),
        false => Ok(whole),
    }
}

fn take(whole: &mut Presentation, media: Option<Media>) -> Result<(), Failure> {
    if let Some(Media { track, is_kept }) = media {
        if is_kept {
            if whole.tracks.len() == MOST_TRACKS || track.clock_hz == 0 {
                return Err(Failure::Parse);
            }
            whole.tracks.push(track);
        }
    }
    Ok(())
}

/// A media section on its way in.
struct Media {
    track: Track,
    is_kept: bool,
}

impl Media {
    /// `video 0 RTP/AVP 96`.
    fn new(told: &str, base: &str) -> Result<Self, Failure> {
        let mut words = told.split_ascii_whitespace();
        let kind = words.next().unwrap_or("");
        let is_rtp = words.nth(1).is_some_and(|word| word.starts_with("RTP/AVP"));
        let is_kept = is_rtp && matches!(kind, "audio" | "video");
        let payload_type = words.next().and_then(|word| word.parse().ok());
        let payload_type = match payload_type.filter(|number| *number < 128) {
            Some(number) => number,
            None if is_kept => return Err(Failure::Parse),
            None => 0,
        };
        let track = Track {
            url: base.to_owned(),
            payload_type,
            clock_hz: usual_hz(payload_type),
            may_report: true,
        };
        Ok(Media { track, is_kept })
    }

    fn line(&mut self, line: &str, base: &str) -> Result<(), Failure> {
        if let Some(control) = line.strip_prefix("a=control:") {
            self.track.url = resolved(base, control)?;
        } else if let Some(map) = line.strip_prefix("a=rtpmap:") {
            let (number, name) = map.split_once(' ').ok_or(Failure::Parse)?;
            if number.parse() == Ok(self.track.payload_type) {
                let clock = name
                    .split('/')
                    .nth(1)
                    .and_then(|clock| clock.trim().parse().ok());
                let right = clock.filter(|clock| (1..=MOST_CLOCK).contains(clock));
                self.track.clock_hz = right.ok_or(Failure::Parse)?;
            }
        } else if line == "b=RR:0" {
            self.track.may_report = false;
        }
        Ok(())
    }
}

/// The clock of a payload type that needs no mapping (RFC 3551, tables 4 and 5); 0: it needs one.
fn usual_hz(payload_type: u8) -> u32 {
    match payload_type {
        6 => 16_000,
        10 | 11 => 44_100,
        16 => 11_025,
        17 => 22_050,
        14 | 25 | 26 | 28 | 31..=34 => 90_000,
        0 | 3..=5 | 7..=9 | 12 | 13 | 15 | 18 => 8_000,
        _ => 0,
    }
}

/// The URL that `control` means. It is a name on the connection that there is: nobody else is asked.
fn resolved(base: &str, control: &str) -> Result<String, Failure> {
    let control = control.trim();
    let url = match control {
        "*" | "" => base.to_owned(),
        _ if control.starts_with("rtsp://") => control.to_owned(),
        _ => format!("{}/{control}", base.trim_end_matches('/')),
    };
    is_url(&url).then_some(url).ok_or(Failure::Parse)
}

/// The end of a range in normal play time (RFC 2326, 3.6): `npt=0-60.5`, also `npt=0-0:01:00.5`.
fn end_ns(range: &str) -> Option<i64> {
    let end = range.trim().strip_prefix("npt=")?.split_once('-')?.1;
    let mut seconds = 0.0;
    for part in end.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    (seconds > 0.0 && seconds <= MOST_SECONDS).then_some((seconds * 1e9) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const VLC: &str = "v=0\r\no=- 17198658799742965117 1 IN IP4 vm\r\nt=0 0\r\na=range: npt=0-30.000\r\n\
a=control:rtsp://h:1/clip\r\nm=audio 0 RTP/AVP 96\r\nb=RR:0\r\na=rtpmap:96 mpeg4-generic/48000/2\r\n\
a=control:rtsp://h:1/clip/trackID=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n\
a=control:rtsp://h:1/clip/trackID=1\r\n";

    const GSTREAMER: &str =
        "v=0\na=control:*\na=range:npt=now-30\nm=video 0 RTP/AVP 96\nc=IN IP4 0.0.0.0\n\
a=rtpmap:96 H264/90000\na=control:stream=0\nm=application 0 RTP/AVP 107\na=control:stream=2\n\
m=audio 0 RTP/AVP 14\na=control:stream=1\n";

    fn track(url: &str, payload_type: u8, clock_hz: u32, may_report: bool) -> Track {
        let url = url.to_owned();
        Track {
            url,
            payload_type,
            clock_hz,
            may_report,
        }
    }

    #[test]
    fn servers_are_understood() {
        let vlc = parse(VLC.as_bytes(), "rtsp://h:1/clip").unwrap();
        assert_eq!(vlc.url, "rtsp://h:1/clip");
        assert_eq!(vlc.length_ns, Some(30_000_000_000));
        let tracks = [
            track("rtsp://h:1/clip/trackID=0", 96, 48_000, false),
            track("rtsp://h:1/clip/trackID=1", 96, 90_000, true),
        ];
        assert_eq!(vlc.tracks, tracks);
        let gstreamer = parse(GSTREAMER.as_bytes(), "rtsp://h:1/clip/").unwrap();
        assert_eq!(gstreamer.url, "rtsp://h:1/clip/");
        let tracks = [
            track("rtsp://h:1/clip/stream=0", 96, 90_000, true),
            track("rtsp://h:1/clip/stream=1", 14, 90_000, true),
        ];
        assert_eq!(gstreamer.tracks, tracks);
    }

    #[test]
    fn the_end_of_a_range_is_read_in_all_its_forms() {
        assert_eq!(end_ns("npt=0-1:00:00.5"), Some(3_600_500_000_000));
        assert_eq!(end_ns(" npt=now-30"), Some(30_000_000_000));
        for none in [
            "npt=now-",
            "npt=0-",
            "npt=0",
            "clock=1-2",
            "npt=0-x",
            "npt=0-0",
            "npt=0-inf",
        ] {
            assert_eq!(end_ns(none), None, "{none}");
        }
    }

    #[test]
    fn what_cannot_be_played_is_refused() {
        let long = "x".repeat(2048);
        for bad in [
            "v=0".to_owned(),
            "m=audio 0 RTP/AVP 96".to_owned(),
            "m=audio 0 RTP/AVP".to_owned(),
            "m=audio 0 RTP/AVP 300".to_owned(),
            "m=audio 0 RTP/AVP 96\na=rtpmap:96 x/0".to_owned(),
            "m=application 0 RTP/AVP 0".to_owned(),
            "m=audio 0 udp 0".to_owned(),
            "m=audio 0 RTP/AVP 0\na=control:a b".to_owned(),
            format!("m=audio 0 RTP/AVP 0\na=control:{long}"),
            "m=audio 0 RTP/AVP 0\n".repeat(MOST_TRACKS + 1),
        ] {
            assert_eq!(
                parse(bad.as_bytes(), "rtsp://h/"),
                Err(Failure::Parse),
                "{bad:.60}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(lines in prop::collection::vec(
            prop_oneof![
                "m=(audio|video|text) [0-9]{1,3} RTP/AVP [0-9]{0,4}", "a=rtpmap:[0-9]{1,3} [a-z]{1,3}/[0-9]{0,12}",
                "a=control:.{0,20}", "a=range:npt=[-0-9:.n]{0,12}", "\\PC{0,20}",
            ], 0..30,
        )) {
            if let Ok(told) = parse(lines.join("\n").as_bytes(), "rtsp://h/x") {
                prop_assert!((1..=MOST_TRACKS).contains(&told.tracks.len()));
                prop_assert!(is_url(&told.url));
                prop_assert!(told.length_ns.is_none_or(|ns| ns > 0));
                for track in told.tracks {
                    prop_assert!(is_url(&track.url) && (1..=MOST_CLOCK).contains(&track.clock_hz));
                }
            }
        }
    }
}
