use proptest::prelude::*;

use super::*;
use crate::view::player::{Player, Rules, Watched};
use crate::view::protocol::Seen;

const SECOND: i64 = 1_000_000_000;
const FRAME_NS: i64 = SECOND / 25;
const HOLE_NS: i64 = SECOND / 2;

/// As GStreamer's RTSP server 1.22 answers (dates left out), one answer after the other.
const GSTREAMER: [&str; 5] = [
    "RTSP/1.0 200 OK\r\nCSeq: 1\r\nPublic: OPTIONS, DESCRIBE, GET_PARAMETER, PAUSE, PLAY, SETUP, TEARDOWN\r\n\
Server: GStreamer RTSP server\r\n\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 2\r\nContent-Type: application/sdp\r\nContent-Base: rtsp://h:8554/clip/\r\n\
Content-Length: 191\r\n\r\nv=0\r\na=control:*\r\na=range:npt=now-30\r\nm=video 0 RTP/AVP 96\r\nb=AS:809\r\n\
a=rtpmap:96 H264/90000\r\na=control:stream=0\r\nm=audio 0 RTP/AVP 97\r\na=rtpmap:97 MPEG4-GENERIC/48000/2\r\n\
a=control:stream=1\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 3\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1;ssrc=CA258023;mode=\"PLAY\"\r\n\
Session: 6AZb_VLuI5-KemvW\r\n\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 4\r\nTransport: RTP/AVP/TCP;unicast;interleaved=2-3;ssrc=7868FA16;mode=\"PLAY\"\r\n\
Session: 6AZb_VLuI5-KemvW\r\n\r\n",
    "RTSP/1.0 200 OK\r\nCSeq: 5\r\nRTP-Info: url=rtsp://h:8554/clip/stream=0;seq=26043;rtptime=1588825331\r\n\
Range: npt=0-30\r\nSession: 6AZb_VLuI5-KemvW\r\n\r\n",
];

/// As VLC 3.0.24 answers, by datagrams.
const VLC: [&str; 4] = [
    "RTSP/1.0 200 OK\r\nServer: VLC/3.0.24\r\nContent-Length: 0\r\nCseq: 1\r\n\
Public: DESCRIBE,SETUP,TEARDOWN,PLAY,PAUSE,GET_PARAMETER\r\n\r\n",
    "RTSP/1.0 200 OK\r\nContent-Base: rtsp://h:8554/clip\r\nContent-Length: 144\r\nCseq: 2\r\n\r\n\
v=0\r\na=range: npt=0-30.000\r\na=control:rtsp://h:8554/clip\r\nm=video 0 RTP/AVP 96\r\n\
a=rtpmap:96 H264/90000\r\na=control:rtsp://h:8554/clip/trackID=1\r\n",
    "RTSP/1.0 200 OK\r\nTransport: RTP/AVP/UDP;unicast;client_port=40000-40001;server_port=39850-39851;mode=play\r\n\
Session: e87ec7917124e192;timeout=10\r\nContent-Length: 0\r\nCseq: 3\r\n\r\n",
    "RTSP/1.0 200 OK\r\nRTP-Info: url=rtsp://h:8554/clip/trackID=1;seq=12661;rtptime=2785887917\r\n\
Session: e87ec7917124e192;timeout=10\r\nCseq: 4\r\n\r\n",
];

fn source(transport: Transport) -> Source {
    Source {
        url: "rtsp://h:8554/clip".into(),
        transport,
        length_ns: Some(30 * SECOND),
        is_live: false,
        mark: None,
    }
}

struct Watching<'a> {
    viewer: Rtsp<'a>,
    player: Player,
    watched: Watched,
    seen: Seen,
    now_ns: i64,
    /// What was sent over the connection, and as datagrams.
    said: Vec<u8>,
    reports: Vec<(usize, u16)>,
}

impl<'a> Watching<'a> {
    fn new(source: &'a Source) -> Self {
        let rules = Rules {
            paced: true,
            startup_ns: SECOND,
            resume_ns: SECOND,
            buffer_ns: 10 * SECOND,
            patience_ns: 20 * SECOND,
        };
        Watching {
            viewer: Rtsp::new(source, 1),
            player: Player::new(rules, 0),
            watched: Watched::within(0, i64::MAX),
            seen: Seen::default(),
            now_ns: 0,
            said: Vec::new(),
            reports: Vec::new(),
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Rtsp<'a>, &mut Now) -> T) -> T {
        self.player.advance(self.now_ns, &mut self.watched);
        let mut now = Now {
            ns: self.now_ns,
            player: &mut self.player,
            watched: &mut self.watched,
            seen: &mut self.seen,
        };
        act(&mut self.viewer, &mut now)
    }

    /// Do what it wants, until it waits for something: then whether it still does.
    fn settled(&mut self) -> Result<bool, Failure> {
        loop {
            match self.with(|viewer, now| viewer.want(now)) {
                Want::Connect => {}
                Want::Say(bytes) => self.said.extend(bytes),
                Want::Datagram { socket, port, .. } => self.reports.push((socket, port)),
                Want::Bind(pairs) => {
                    let ports =
                        (0..pairs as u16).map(|pair| (40_000 + 2 * pair, 40_001 + 2 * pair));
                    self.viewer.bound(ports.collect());
                }
                Want::Read(_) => return Ok(true),
                Want::Nothing => return Ok(false),
                Want::Fail(failure) => return Err(failure),
                other => panic!("{other:?} of RTSP"),
            }
        }
    }

    fn take(&mut self, input: &[u8]) -> Result<bool, Failure> {
        self.settled()?;
        self.with(|viewer, now| viewer.take(input, now))?;
        self.settled()
    }

    fn plays(source: &'a Source, answers: &[&str]) -> Self {
        let mut watching = Watching::new(source);
        for answer in answers {
            watching.take(answer.as_bytes()).unwrap();
        }
        watching
    }

    /// What was said since this was last asked, by the first line of each message.
    fn lines(&mut self) -> Vec<String> {
        let said = std::mem::take(&mut self.said);
        let text = String::from_utf8_lossy(&said).into_owned();
        let heads = text.split("\r\n\r\n").filter(|head| !head.is_empty());
        heads
            .map(|head| head.lines().next().unwrap_or("").to_owned())
            .collect()
    }

    /// Seconds of video and audio in interleaved frames, from this moment of the film on, as they are played.
    fn frames(&mut self, from_s: u32, until_s: u32) -> Result<bool, Failure> {
        for number in from_s * 25..until_s * 25 {
            let video = rtp(
                96,
                60_000 + number,
                4_294_900_000u32.wrapping_add(number * 3600),
                7,
            );
            let audio = rtp(97, number, number * 1920, 8);
            let input = [frame(0, &video), frame(2, &audio)].concat();
            self.now_ns += FRAME_NS;
            if !self.take(&input)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn rtp(payload_type: u8, number: u32, timestamp: u32, source: u32) -> Vec<u8> {
    let mut packet = vec![0x80, payload_type];
    packet.extend((number as u16).to_be_bytes());
    packet.extend(timestamp.to_be_bytes());
    packet.extend(source.to_be_bytes());
    packet.extend([b'x'; 88]);
    packet
}

fn bye(source: u32) -> Vec<u8> {
    let report = [&[0x80, 201, 0, 1][..], &source.to_be_bytes()].concat();
    [
        report,
        [&[0x81, 203, 0, 1][..], &source.to_be_bytes()].concat(),
    ]
    .concat()
}

fn frame(channel: u8, payload: &[u8]) -> Vec<u8> {
    [
        &[b'$', channel][..],
        &(payload.len() as u16).to_be_bytes(),
        payload,
    ]
    .concat()
}

#[test]
fn a_film_is_set_up_played_and_whole() {
    let source = source(Transport::Tcp);
    let mut watching = Watching::plays(&source, &GSTREAMER);
    let said = String::from_utf8(watching.said.clone()).unwrap();
    assert!(said.contains(
        "SETUP rtsp://h:8554/clip/stream=1 RTSP/1.0\r\nCSeq: 4\r\nUser-Agent: virtoll-load\r\n\
Session: 6AZb_VLuI5-KemvW\r\nTransport: RTP/AVP/TCP;unicast;interleaved=2-3\r\n\r\n"
    ));
    assert!(said.ends_with(
        "PLAY rtsp://h:8554/clip/ RTSP/1.0\r\nCSeq: 5\r\nUser-Agent: virtoll-load\r\n\
Session: 6AZb_VLuI5-KemvW\r\nRange: npt=0.000-\r\n\r\n"
    ));
    watching.lines();
    watching.frames(0, 30).unwrap();
    assert!(
        (10..=24).contains(&watching.seen.rtp.receiver_reports),
        "of two tracks, every five seconds or so"
    );
    watching.lines();
    let media_ns = watching.player.got_ns();
    assert_eq!(media_ns, 30 * SECOND - FRAME_NS);
    let farewell = [frame(1, &bye(7)), frame(3, &bye(8))].concat();
    assert_eq!(watching.take(&farewell), Ok(false));
    assert_eq!(watching.lines(), ["TEARDOWN rtsp://h:8554/clip/ RTSP/1.0"]);
    watching.now_ns += 2 * SECOND;
    watching.settled().unwrap();
    assert_eq!(watching.watched.media_ns, media_ns);
    assert_eq!(watching.watched.stalls, 0);
    let rtp = &watching.seen.rtp;
    assert_eq!(
        (rtp.packets, rtp.expected, rtp.lost, rtp.strays),
        (1500, 1500, 0, 0)
    );
    assert_eq!(
        (watching.seen.media_bytes, watching.seen.answers),
        (1500 * 88, 5)
    );
    assert_eq!(
        watching.with(|viewer, now| viewer.leave(now)),
        None,
        "it has said so"
    );
    assert_eq!(
        (watching.seen.rtp.jitters, watching.seen.rtp.jitter_worst_ns),
        (1, 0)
    );
}

#[test]
fn datagrams_come_to_ports_and_are_reported_to_ports() {
    let source = source(Transport::Udp);
    let mut watching = Watching::plays(&source, &VLC);
    let lines = watching.lines();
    assert_eq!(lines[2], "SETUP rtsp://h:8554/clip/trackID=1 RTSP/1.0");
    for number in 0..250u32 {
        watching.now_ns += FRAME_NS;
        if number % 10 != 3 {
            let packet = rtp(96, number, number * 3600, 7);
            let now_ns = watching.now_ns;
            watching
                .with(|viewer, now| viewer.datagram(0, &packet, Came::just(now_ns), now))
                .unwrap();
        }
        assert!(watching.settled().unwrap());
        assert!(watching.viewer.wakes_ns() > watching.now_ns);
    }
    assert!((1..=5).contains(&watching.reports.len()));
    assert!(watching.reports.iter().all(|report| *report == (1, 39_851)));
    assert_eq!(
        watching.lines(),
        ["GET_PARAMETER rtsp://h:8554/clip RTSP/1.0"],
        "half of its time is over"
    );
    assert_eq!(
        (watching.seen.rtp.lost, watching.seen.rtp.expected),
        (25, 250)
    );
    assert_eq!(
        watching.player.got_ns(),
        249 * FRAME_NS,
        "small holes are played over"
    );
    let said = watching.with(|viewer, now| viewer.leave(now)).unwrap();
    assert!(said.starts_with(b"TEARDOWN rtsp://h:8554/clip RTSP/1.0\r\nCSeq: 6\r\n"));
}

#[test]
fn what_comes_late_of_a_window_that_is_over_counts_for_no_other() {
    let source = source(Transport::Udp);
    let mut watching = Watching::plays(&source, &VLC);
    let comes = |watching: &mut Watching, numbers: &[u32]| {
        for number in numbers {
            watching.now_ns += FRAME_NS;
            let (packet, now_ns) = (rtp(96, *number, number * 3600, 7), watching.now_ns);
            let came =
                watching.with(|viewer, now| viewer.datagram(0, &packet, Came::just(now_ns), now));
            came.unwrap();
        }
    };
    comes(&mut watching, &[0, 1, 2, 4]);
    watching.with(|viewer, now| viewer.end_window(now));
    let rtp = &watching.seen.rtp;
    assert_eq!((rtp.expected, rtp.lost, rtp.jitters), (5, 1, 1));
    watching.seen = Seen::default();
    comes(&mut watching, &[3, 5, 6]);
    watching.with(|viewer, now| viewer.end_window(now));
    let rtp = &watching.seen.rtp;
    assert_eq!((rtp.packets, rtp.expected, rtp.lost), (3, 2, 0));
    assert_eq!(rtp.jitters, 1);
}

#[test]
fn a_hole_brings_no_media() {
    let source = source(Transport::Tcp);
    let mut watching = Watching::plays(&source, &GSTREAMER);
    watching.frames(0, 2).unwrap();
    watching.now_ns += 3 * SECOND;
    watching.frames(5, 7).unwrap();
    assert_eq!(
        watching.player.got_ns(),
        4 * SECOND - 2 * FRAME_NS + SECOND / 2
    );
    assert_eq!(watching.seen.rtp.lost, 2 * 75);
}

#[test]
fn a_film_that_falls_silent_at_its_end_is_whole_and_one_that_ends_before_is_cut() {
    let source = source(Transport::Tcp);
    let mut watching = Watching::plays(&source, &GSTREAMER);
    watching.frames(0, 29).unwrap();
    watching.now_ns = watching.viewer.wakes_ns().max(watching.now_ns + SILENCE_NS);
    assert_eq!(watching.settled(), Ok(false));
    let mut watching = Watching::plays(&source, &GSTREAMER);
    watching.frames(0, 20).unwrap();
    assert_eq!(watching.take(&frame(1, &bye(7))), Ok(true), "sound goes on");
    assert_eq!(watching.take(&frame(3, &bye(8))), Ok(true));
    watching.now_ns += SILENCE_NS;
    assert!(watching.viewer.wakes_ns() <= watching.now_ns);
    assert_eq!(watching.settled(), Err(Failure::Length));
    let mut watching = Watching::plays(&source, &GSTREAMER);
    watching.frames(0, 20).unwrap();
    assert_eq!(
        watching.with(|viewer, now| viewer.closed(now)),
        Err(Failure::Length)
    );
    let mut watching = Watching::plays(&source, &GSTREAMER[..3]);
    assert_eq!(
        watching.with(|viewer, now| viewer.closed(now)),
        Err(Failure::Reset)
    );
}

#[test]
fn a_server_may_close_at_the_end_and_not_before() {
    let source = source(Transport::Tcp);
    for (answers, seconds, may_close) in [(4, 0, false), (5, 20, false), (5, 29, true)] {
        let mut watching = Watching::plays(&source, &GSTREAMER[..answers]);
        watching.frames(0, seconds).unwrap();
        assert_eq!(watching.viewer.may_close(), may_close, "{seconds}");
        if may_close {
            watching.with(|viewer, now| viewer.closed(now)).unwrap();
            assert!(watching.viewer.may_close(), "it is whole");
        }
    }
}

#[test]
fn what_is_live_has_no_end() {
    let mut source = source(Transport::Tcp);
    source.is_live = true;
    let mut watching = Watching::plays(&source, &GSTREAMER);
    assert!(!String::from_utf8_lossy(&watching.said).contains("Range"));
    watching.frames(0, 40).unwrap();
    watching
        .take(&[frame(1, &bye(7)), frame(3, &bye(8))].concat())
        .unwrap();
    watching.now_ns += SILENCE_NS;
    assert_eq!(watching.settled(), Err(Failure::Length));
}

#[test]
fn timestamps_and_numbers_that_leap_are_told() {
    let source = source(Transport::Tcp);
    for (number, timestamp, is_right) in [
        (1, 3600u32, true),
        (1, 6 * 90_000, false),
        (1, 0u32.wrapping_sub(6 * 90_000), false),
        (1, 0u32.wrapping_sub(4 * 90_000), true),
    ] {
        let mut watching = Watching::plays(&source, &GSTREAMER);
        watching.take(&frame(0, &rtp(96, 0, 0, 7))).unwrap();
        let told = watching.take(&frame(0, &rtp(96, number, timestamp, 7)));
        let expected = if is_right {
            Ok(true)
        } else {
            Err(Failure::Timestamps)
        };
        assert_eq!(told, expected, "{timestamp}");
    }
}

/// Thousands of packets that were lost in a row were told as a source's that had leaped, and none of them as lost.
#[test]
fn an_outage_is_a_loss_and_what_leaps_without_one_is_told() {
    const PACKET_NS: i64 = SECOND / 2500;
    let source = source(Transport::Udp);
    for (numbers, ticks, passed_ns, is_outage) in [
        (5000, 5000 * 36, 2 * SECOND, true),
        (5000, 5000 * 36, SECOND / 2, true), // late, and then all at once
        (5000, 36, PACKET_NS, false),
        (5000, 5000 * 36, 8 * SECOND, false),
        (50_000, 5000 * 36, 2 * SECOND, false),
    ] {
        let mut watching = Watching::plays(&source, &VLC);
        let mut comes = |number: u32, timestamp: u32, passed_ns: i64| {
            watching.now_ns += passed_ns;
            let (packet, came) = (rtp(96, number, timestamp, 7), Came::just(watching.now_ns));
            watching.with(|viewer, now| viewer.datagram(0, &packet, came, now))
        };
        for number in 0..2500 {
            comes(number, number * 36, PACKET_NS).unwrap();
        }
        comes(2499 + numbers, 2499 * 36 + ticks, passed_ns).unwrap();
        let told = comes(2500 + numbers, 2500 * 36 + ticks, PACKET_NS);
        let rtp = &watching.seen.rtp;
        if is_outage {
            assert_eq!(told, Ok(()));
            assert_eq!((rtp.lost, rtp.strays), (5000, 1));
            let media_ns = 2499 * PACKET_NS + HOLE_NS;
            assert_eq!(watching.player.got_ns(), media_ns, "it brought none");
        } else {
            assert_eq!(told, Err(Failure::Timestamps), "{numbers} {ticks}");
            assert_eq!(rtp.lost, 0);
        }
    }
}

#[test]
fn refusals_and_nonsense_are_told_by_kind() {
    let tcp = source(Transport::Tcp);
    for status in [301, 404, 454, 461, 500, 503] {
        for before in 0..5 {
            let mut watching = Watching::plays(&tcp, &GSTREAMER[..before]);
            let refusal = format!("RTSP/1.0 {status} No\r\nCSeq: {}\r\n\r\n", before + 1);
            assert_eq!(watching.take(refusal.as_bytes()), Err(Failure::Status));
            assert_eq!(watching.viewer.refused(), Some(status));
        }
    }
    let setup = GSTREAMER[2];
    for wrong in [
        setup.replace("CSeq: 3", "CSeq: 4"),
        setup.replace("CSeq: 3\r\n", ""),
        setup.replace("Session: 6AZb_VLuI5-KemvW\r\n", ""),
        setup.replace("RTP/AVP/TCP", "RTP/AVP"),
        setup.replace("interleaved", "x"),
        setup.replace("0-1", "256-257"),
        "REDIRECT rtsp://h/ RTSP/1.0\r\nCSeq: 1\r\n\r\n".into(),
        "HTTP/1.1 200 OK\r\n\r\n".into(),
    ] {
        let mut watching = Watching::plays(&tcp, &GSTREAMER[..2]);
        assert_eq!(
            watching.take(wrong.as_bytes()),
            Err(Failure::Parse),
            "{wrong}"
        );
    }
    let udp = source(Transport::Udp);
    for wrong in [
        VLC[2].replace("/UDP", "/TCP"),
        VLC[2].replace("unicast", "multicast"),
    ] {
        let mut watching = Watching::plays(&udp, &VLC[..2]);
        assert_eq!(
            watching.take(wrong.as_bytes()),
            Err(Failure::Parse),
            "{wrong}"
        );
    }
    let mut watching = Watching::plays(&tcp, &GSTREAMER);
    assert_eq!(watching.take(&frame(0, b"no RTP")), Err(Failure::Parse));
    let mut watching = Watching::plays(&tcp, &GSTREAMER);
    watching
        .take(b"ANNOUNCE rtsp://h/ RTSP/1.0\r\nCSeq: 77\r\n\r\n")
        .unwrap();
    assert_eq!(
        watching.lines().pop().unwrap(),
        "RTSP/1.0 501 Not Implemented"
    );
}

#[test]
fn what_others_send_is_stray() {
    let source = source(Transport::Tcp);
    let mut watching = Watching::plays(&source, &GSTREAMER);
    for (channel, packet) in [
        (0, rtp(96, 0, 0, 7)),
        (0, rtp(96, 1, 0, 9)),
        (0, rtp(95, 1, 0, 7)),
        (9, rtp(96, 1, 0, 7)),
        (1, bye(9)),
    ] {
        assert_eq!(watching.take(&frame(channel, &packet)), Ok(true));
    }
    assert_eq!(
        (watching.seen.rtp.packets, watching.seen.rtp.strays),
        (1, 4)
    );
}

/// Each of them ended the view, as an answer does that is none.
#[test]
fn a_datagram_that_is_no_packet_is_stray() {
    let source = source(Transport::Udp);
    let mut watching = Watching::plays(&source, &VLC);
    let binding = [&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42][..], &[7; 12]].concat(); // STUN's (RFC 8489)
    let others = [b"".to_vec(), vec![0; 4], binding];
    for (number, other) in (0..).zip(&others) {
        let packet = rtp(96, number, number * 3600, 7);
        for (socket, datagram) in [(0, &packet), (0, other), (1, other)] {
            let came = Came::just(watching.now_ns);
            let told = watching.with(|viewer, now| viewer.datagram(socket, datagram, came, now));
            assert_eq!(told, Ok(()), "{datagram:?}");
        }
    }
    let rtp = &watching.seen.rtp;
    assert_eq!((rtp.packets, rtp.strays), (3, 6));
    assert_eq!(watching.player.got_ns(), 2 * FRAME_NS);
}

/// Its own end is no stall: that a server says nothing more is known only a while after the last that it said.
#[test]
fn the_silence_that_ends_a_film_is_no_stall_and_a_pause_before_its_end_is_one() {
    let source = source(Transport::Tcp);
    for (pause_ns, stalled_ns) in [(0, 0), (20 * FRAME_NS, 8 * FRAME_NS)] {
        let mut watching = Watching::new(&source);
        let rules = Rules {
            startup_ns: SECOND / 2,
            resume_ns: FRAME_NS,
            ..*watching.player.rules()
        };
        watching.player = Player::new(rules, 0);
        for answer in GSTREAMER {
            watching.take(answer.as_bytes()).unwrap();
        }
        watching.frames(0, 29).unwrap();
        watching.now_ns += pause_ns;
        watching.frames(29, 30).unwrap();
        for _ in 0..100 {
            watching.now_ns += FRAME_NS;
            if watching.settled() == Ok(false) {
                break;
            }
        }
        assert_eq!(watching.viewer.phase, Phase::Whole);
        let watched = &watching.watched;
        assert_eq!(
            (watched.stalls, watched.stalled_ns),
            (u64::from(pause_ns > 0), stalled_ns)
        );
    }
}

/// A server that goes on sending to whoever had the port before kept a film from its end, and one that was cut from its
/// failure.
#[test]
fn what_brings_nothing_does_not_break_the_silence() {
    let source = source(Transport::Tcp);
    for (seconds, farewells, expected) in [
        (29, vec![], Ok(false)),
        (20, vec![(1, 7), (3, 8)], Err(Failure::Length)),
    ] {
        let mut watching = Watching::plays(&source, &GSTREAMER);
        watching.frames(0, seconds).unwrap();
        let is_over = !farewells.is_empty();
        let newest = 4_294_900_000u32.wrapping_add((25 * seconds - 1) * 3600);
        for (channel, source) in farewells {
            watching.take(&frame(channel, &bye(source))).unwrap();
        }
        let (heard_ns, mut told, mut next) = (watching.now_ns, Ok(true), 25 * seconds);
        while told == Ok(true) && watching.now_ns < heard_ns + 2 * SILENCE_NS {
            watching.now_ns += FRAME_NS;
            let others = [
                frame(0, &rtp(96, 9, 0, 9)),
                frame(2, &rtp(97, 0, 0, 8)), // came long before
                frame(1, &bye(99)),
                frame(0, &rtp(96, 60_000 + next, newest, 7)[..12]), // of no payload
            ];
            next += 1;
            let again = match is_over {
                true => frame(1, &bye(7)),
                false => Vec::new(),
            };
            told = watching.take(&[others.concat(), again].concat());
        }
        assert_eq!(told, expected);
        assert_eq!(watching.now_ns, heard_ns + SILENCE_NS);
    }
}

/// A timer that is due in the past would be told as one that the generator looked at too late.
#[test]
fn a_farewell_that_comes_later_is_due_at_once_and_not_before() {
    let source = source(Transport::Udp);
    for seconds in [10, 30] {
        let mut watching = Watching::plays(&source, &VLC);
        for number in 0..seconds * 25 {
            watching.now_ns += FRAME_NS;
            let (packet, now_ns) = (rtp(96, number, number * 3600, 7), watching.now_ns);
            watching
                .with(|viewer, now| viewer.datagram(0, &packet, Came::just(now_ns), now))
                .unwrap();
            watching.settled().unwrap();
        }
        watching.now_ns += SECOND / 2;
        assert_eq!(watching.settled(), Ok(true));
        let farewell = bye(7);
        watching
            .with(|viewer, now| viewer.datagram(1, &farewell, Came::just(0), now))
            .unwrap();
        assert!(watching.viewer.wakes_ns() >= watching.now_ns, "{seconds}");
        let expected = if seconds == 30 {
            Ok(false)
        } else {
            Err(Failure::Length)
        };
        let told = loop {
            watching.now_ns = watching.viewer.wakes_ns();
            match watching.settled() {
                Ok(true) => {} // it looked up
                told => break told,
            }
        };
        assert_eq!(told, expected);
    }
}

/// A server that has not yet noticed that a viewer left sends to a port that may by now be another's.
#[test]
fn what_comes_before_play_is_asked_for_is_stray() {
    let source = source(Transport::Udp);
    let mut watching = Watching::plays(&source, &VLC[..2]);
    let datagram = |watching: &mut Watching, socket, packet: Vec<u8>| {
        watching.with(|viewer, now| viewer.datagram(socket, &packet, Came::just(0), now))
    };
    assert_eq!(datagram(&mut watching, 0, rtp(96, 5000, 0, 9)), Ok(()));
    assert_eq!(datagram(&mut watching, 1, bye(9)), Ok(()));
    for answer in &VLC[2..] {
        watching.take(answer.as_bytes()).unwrap();
    }
    for number in 0..3 {
        datagram(&mut watching, 0, rtp(96, number, number * 3600, 7)).unwrap();
    }
    let rtp = &watching.seen.rtp;
    assert_eq!((rtp.packets, rtp.lost, rtp.strays), (3, 0, 2));
    assert_eq!(watching.player.got_ns(), 2 * FRAME_NS);
    assert!(!watching.viewer.is_over());
}

/// The same where one comes after play was asked for: it must not keep out whoever sends.
#[test]
fn a_datagram_for_who_had_the_port_before_is_no_source() {
    let source = source(Transport::Udp);
    let plays = |packets: &[(u32, u32)]| {
        let mut watching = Watching::plays(&source, &VLC);
        for (ssrc, number) in packets {
            watching.now_ns += FRAME_NS;
            let packet = rtp(96, *number, number * 3600, *ssrc);
            let came = Came::just(watching.now_ns);
            watching
                .with(|viewer, now| viewer.datagram(0, &packet, came, now))
                .unwrap();
        }
        (watching.player.got_ns(), watching.seen.rtp.strays)
    };
    let own: Vec<_> = (0..50).map(|number| (7, number)).collect();
    let with = |strays: &[(usize, (u32, u32))]| {
        let mut packets = own.clone();
        for (place, stray) in strays {
            packets.insert(*place, *stray);
        }
        plays(&packets)
    };
    assert_eq!(plays(&own), (49 * FRAME_NS, 0));
    assert_eq!(with(&[(0, (9, 5000))]), (48 * FRAME_NS, 1));
    assert_eq!(with(&[(0, (9, 5000)), (2, (9, 5003))]), (48 * FRAME_NS, 1));
    assert_eq!(
        with(&[(1, (9, 5000)), (3, (9, 5001)), (4, (9, 5002))]),
        (49 * FRAME_NS, 3),
        "who sends is known by then"
    );
}

#[test]
fn a_farewell_of_who_had_the_port_before_ends_nothing() {
    let source = source(Transport::Udp);
    for skipped in [0, 1] {
        let mut watching = Watching::plays(&source, &VLC);
        let packets = [
            (0, rtp(96, 5000, 0, 9)),
            (1, bye(9)),
            (0, rtp(96, 0, 0, 7)),
            (0, rtp(96, 1, 3600, 7)),
        ];
        for (socket, packet) in &packets[skipped..] {
            let came = Came::just(watching.now_ns);
            watching
                .with(|viewer, now| viewer.datagram(*socket, packet, came, now))
                .unwrap();
        }
        assert!(!watching.viewer.is_over(), "{skipped}");
    }
}

#[test]
fn a_timeout_that_was_told_once_holds() {
    let source = source(Transport::Tcp);
    let mut answers = GSTREAMER.map(str::to_owned);
    answers[2] = answers[2].replace("6AZb_VLuI5-KemvW", "6AZb_VLuI5-KemvW;timeout=10");
    let mut watching = Watching::plays(&source, &answers.each_ref().map(String::as_str));
    watching.frames(0, 6).unwrap();
    assert!(String::from_utf8_lossy(&watching.said).contains("GET_PARAMETER"));
}

/// A relay may send the mark alone or together with what follows, and knows nothing of the publisher's timestamps.
#[test]
fn a_marked_frame_is_as_old_as_its_last_packet() {
    let mark = *b"0123456789abcdef";
    let mut source = source(Transport::Tcp);
    source.is_live = true;
    for (with_mark, packets, ages) in [
        (
            Some(mark),
            [(0, 0x06, false), (0, 0x65, false), (0, 0x65, true)],
            vec![5 * FRAME_NS],
        ),
        (
            Some(mark),
            [(0, 0x18, true), (1, 0x41, true), (2, 0x41, true)],
            vec![3 * FRAME_NS],
        ),
        (
            Some(mark),
            [(0, 0x06, false), (1, 0x65, true), (2, 0x41, true)],
            vec![],
        ), // the end of it is lost
        (
            Some(mark),
            [(0, 0x65, false), (0, 0x41, false), (0, 0x41, true)],
            vec![],
        ), // a picture that only looks so
        (
            Some(*b"fedcba9876543210"),
            [(0, 0x06, false), (0, 0x65, false), (0, 0x65, true)],
            vec![],
        ), // another's
        (
            None,
            [(0, 0x06, false), (0, 0x65, false), (0, 0x65, true)],
            vec![],
        ),
    ] {
        source.mark = with_mark;
        let mut watching = Watching::plays(&source, &GSTREAMER);
        watching.now_ns += SECOND;
        let unit = crate::rtmp::media::marked(&mark, watching.now_ns - 2 * FRAME_NS);
        for (number, (picture, unit_kind, is_last)) in packets.into_iter().enumerate() {
            watching.now_ns += FRAME_NS;
            let mut packet = rtp(96, number as u32, picture * 3600, 7);
            packet[1] |= u8::from(is_last) << 7;
            packet.truncate(12);
            packet.push(unit_kind);
            packet.extend(if number == 0 { &unit[5..] } else { b"slice" });
            watching.take(&frame(0, &packet)).unwrap();
        }
        let seen = &watching.seen;
        assert_eq!(
            (seen.ages, seen.age_ns),
            (ages.len() as u64, ages.iter().sum()),
            "{packets:?}"
        );
    }
}

/// A datagram waits in the kernel, which stamps it, until the generator reads it; and the jitter is by the stamps alone.
#[test]
fn a_datagrams_age_is_that_at_which_it_came_and_not_at_which_it_was_read() {
    let mark = *b"0123456789abcdef";
    let mut source = source(Transport::Udp);
    (source.is_live, source.mark) = (true, Some(mark));
    let mut watching = Watching::plays(&source, &VLC);
    watching.now_ns += SECOND;
    let mut packet = rtp(96, 0, 0, 7);
    packet[1] |= 1 << 7;
    packet.truncate(12);
    packet.push(0x18);
    packet.extend(&crate::rtmp::media::marked(&mark, watching.now_ns)[5..]);
    let came = Came {
        stamp_ns: 77 * SECOND,
        at_ns: watching.now_ns + FRAME_NS,
    };
    watching.now_ns += 9 * FRAME_NS;
    let told = watching.with(|viewer, now| viewer.datagram(0, &packet, came, now));
    assert_eq!(told, Ok(()));
    assert_eq!((watching.seen.ages, watching.seen.age_ns), (1, FRAME_NS));
}

/// In whatever state it is: it may wait for nothing but what comes.
#[test]
fn a_viewer_looks_up_by_itself_several_times_a_second() {
    let source = source(Transport::Udp);
    for answers in 0..=VLC.len() {
        let mut watching = Watching::plays(&source, &VLC[..answers]);
        watching.settled().unwrap();
        for _ in 0..10 {
            let wakes_ns = watching.viewer.wakes_ns();
            let after_ns = wakes_ns - watching.now_ns;
            assert!((1..=200_000_000).contains(&after_ns), "{after_ns}");
            watching.now_ns = wakes_ns;
            watching.settled().unwrap();
        }
        assert!(watching.now_ns >= SECOND / 2, "it does little else");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever a server says, at whatever time: no panic, and it always wants to read, or has ended.
    #[test]
    fn any_server_is_borne(
        before in 0usize..=5,
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            (0u8..5, prop::collection::vec(any::<u8>(), 0..60)).prop_map(|(channel, payload)| frame(channel, &payload)),
            (0u8..4, 95u8..98, any::<u32>(), any::<u32>(), 7u32..9)
                .prop_map(|(channel, kind, number, timestamp, source)| frame(channel, &rtp(kind, number, timestamp, source))),
            (0u32..200, 0u32..200).prop_map(|(number, timestamp)| frame(0, &rtp(96, number, timestamp * 3600, 7))),
            (0u8..4, 7u32..9).prop_map(|(channel, source)| frame(channel, &bye(source))),
            (200u16..500, 1u32..8).prop_map(|(status, number)| format!("RTSP/1.0 {status} x\r\nCSeq: {number}\r\n\r\n").into_bytes()),
            prop::sample::select(GSTREAMER.to_vec()).prop_map(|answer| answer.as_bytes().to_vec()),
        ], 0..40),
        steps in prop::collection::vec(0i64..40 * SECOND, 40),
    ) {
        let source = source(Transport::Tcp);
        let mut watching = Watching::plays(&source, &GSTREAMER[..before]);
        for (part, step_ns) in parts.iter().zip(steps) {
            watching.now_ns += step_ns;
            match watching.take(part) {
                Ok(true) => prop_assert!(watching.viewer.wakes_ns() > watching.now_ns),
                Ok(false) | Err(_) => break,
            }
        }
        watching.with(|viewer, now| viewer.leave(now));
    }

    #[test]
    fn any_datagram_is_borne(packets in prop::collection::vec((0usize..2, prop::collection::vec(any::<u8>(), 0..100)), 0..50)) {
        let source = source(Transport::Udp);
        let mut watching = Watching::plays(&source, &VLC);
        for (socket, packet) in packets {
            watching.now_ns += FRAME_NS;
            let _ = watching.with(|viewer, now| viewer.datagram(socket, &packet, Came::just(0), now));
        }
    }

    /// Cut in whatever pieces, the same comes of it.
    #[test]
    fn any_cuts_give_the_same(cuts in prop::collection::vec(1usize..400, 0..60)) {
        let source = source(Transport::Tcp);
        let mut whole = Watching::plays(&source, &GSTREAMER);
        let mut pieces = Watching::plays(&source, &GSTREAMER);
        let stream: Vec<u8> = (0..50).flat_map(|number| frame(2 * (number % 2) as u8, &rtp(96 + (number % 2) as u8, number / 2, number * 1000, 7))).collect();
        whole.take(&stream).unwrap();
        let mut rest = &stream[..];
        for cut in cuts {
            let (piece, left) = rest.split_at(cut.min(rest.len()));
            pieces.take(piece).unwrap();
            rest = left;
        }
        pieces.take(rest).unwrap();
        prop_assert_eq!(whole.seen, pieces.seen);
        prop_assert_eq!(whole.player.got_ns(), pieces.player.got_ns());
    }
}
