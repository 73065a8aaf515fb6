//! HTTP progressive download: one file, whose media time follows from its bit rate.
//!
//! Paced, it reads as fast as it can until `buffer_ns` are ahead of the play head; from then on it reads again whenever
//! half a second of that (at most a quarter) has been played. In between the kernel's receive window fills and the
//! server has to wait, as with a browser's player.

use super::fetch::{Fetch, Right, Site};
use super::protocol::{Looks, Now, Protocol, Want};
use crate::tally::Failure;

const READ_BYTES: usize = 64 * 1024;
/// While it plays less room than this is none: what plays while one read is made would be read by itself, byte by byte.
const LEAST_ROOM_NS: i64 = 1_000_000;

/// What to ask for.
#[derive(Clone, Debug)]
pub struct File {
    pub site: Site,
    pub path: String,
    pub right: Right,
    pub bit_per_s: u64,
}

impl File {
    fn media_ns(&self, bytes: u64) -> i64 {
        let ns = u128::from(bytes) * 8_000_000_000 / u128::from(self.bit_per_s);
        i64::try_from(ns).unwrap_or(i64::MAX / 4)
    }

    /// The least that plays for so long.
    fn bytes(&self, media_ns: i64) -> u64 {
        let bits = u128::from(media_ns.max(0) as u64) * u128::from(self.bit_per_s);
        bits.div_ceil(8_000_000_000) as u64
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    New,
    Connected,
    Filling,
    Full,
    Whole,
}

pub struct Progressive<'a> {
    file: &'a File,
    fetch: Fetch,
    looks: Looks,
    phase: Phase,
}

impl<'a> Progressive<'a> {
    /// `seed`: of what is drawn, so that viewers do not look up all at once.
    pub fn new(file: &'a File, seed: u64) -> Self {
        Progressive {
            file,
            fetch: Fetch::new(file.right),
            looks: Looks::new(seed),
            phase: Phase::New,
        }
    }

    fn read_or_pause(&mut self, now: &mut Now) -> Want {
        let rules = now.player.rules();
        if !rules.paced {
            return Want::Read(READ_BYTES);
        }
        let low_ns = rules.buffer_ns - rules.refill_ns();
        if self.phase == Phase::Full {
            match now.player.at_most_ahead_ns(low_ns) {
                Some(at_ns) if at_ns > now.ns => return Want::Pause(at_ns),
                _ => self.phase = Phase::Filling,
            }
        }
        let room_ns = rules.buffer_ns - now.player.ahead_ns();
        let room_bytes = self.file.bytes(room_ns);
        let least_ns = match now.player.at_most_ahead_ns(low_ns) {
            Some(_) => LEAST_ROOM_NS.min(rules.refill_ns() / 2),
            None => 0, // it stands still, and begins when its buffer is full
        };
        if room_bytes > 0 && room_ns > least_ns {
            return Want::Read(READ_BYTES.min(room_bytes as usize));
        }
        self.phase = Phase::Full;
        Want::Pause(now.player.at_most_ahead_ns(low_ns).unwrap_or(now.ns))
    }

    fn goes_on(&mut self, is_whole: bool, before_bytes: u64, now: &mut Now) -> Result<(), Failure> {
        let bytes = self.fetch.body_bytes();
        if is_whole && bytes == 0 {
            return Err(Failure::Length);
        }
        now.count(|seen| {
            seen.media_bytes += bytes - before_bytes;
            seen.answers += u64::from(is_whole);
        });
        if is_whole {
            self.phase = Phase::Whole;
        }
        let media_ns = self.file.media_ns(bytes) - now.player.got_ns();
        let rules = now.player.rules();
        if rules.paced && bytes > before_bytes {
            now.watched.most_ns = now.watched.most_ns.max(rules.refill_ns()); // it comes as if at once
        }
        now.media(media_ns, is_whole);
        Ok(())
    }
}

impl Protocol for Progressive<'_> {
    fn want(&mut self, now: &mut Now) -> Want {
        match self.phase {
            Phase::New => {
                self.phase = Phase::Connected;
                Want::Connect
            }
            Phase::Connected => {
                self.phase = Phase::Filling;
                Want::Send(self.file.site.get(&self.file.path))
            }
            Phase::Filling | Phase::Full => {
                self.looks.look(now.ns);
                self.read_or_pause(now)
            }
            Phase::Whole => Want::Nothing,
        }
    }

    fn take(&mut self, input: &[u8], now: &mut Now) -> Result<(), Failure> {
        let before_bytes = self.fetch.body_bytes();
        let is_whole = self.fetch.take(input, |_| ())?;
        self.goes_on(is_whole, before_bytes, now)
    }

    fn closed(&mut self, now: &mut Now) -> Result<(), Failure> {
        let before_bytes = self.fetch.body_bytes();
        let is_whole = self.fetch.closed()?;
        self.goes_on(is_whole, before_bytes, now)
    }

    fn wakes_ns(&self) -> i64 {
        match self.phase {
            Phase::Filling => self.looks.due_ns(),
            _ => i64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::player::{Player, Rules, Watched};
    use crate::view::protocol::{looks_up_by_itself, Seen};
    use crate::view::text::text;

    const SECOND: i64 = 1_000_000_000;
    const BYTES: u64 = 100_000;

    /// 8 kB/s: the file is 12.5 s long.
    fn file() -> File {
        File {
            site: Site {
                authority: "h:1".into(),
                proxy: false,
            },
            path: "/o/100000".into(),
            right: Right::piece((0, BYTES)),
            bit_per_s: 64_000,
        }
    }

    struct Watching<'a> {
        viewer: Progressive<'a>,
        player: Player,
        watched: Watched,
        seen: Seen,
        sent: usize,
    }

    impl<'a> Watching<'a> {
        fn new(file: &'a File, paced: bool) -> Self {
            Watching::with(file, |rules| rules.paced = paced)
        }

        fn with(file: &'a File, changes: impl Fn(&mut Rules)) -> Self {
            let mut rules = Rules {
                paced: true,
                startup_ns: SECOND,
                resume_ns: SECOND,
                buffer_ns: 4 * SECOND,
                patience_ns: 10 * SECOND,
            };
            changes(&mut rules);
            let mut watching = Watching {
                viewer: Progressive::new(file, 1),
                player: Player::new(rules, 0),
                watched: Watched::within(0, i64::MAX),
                seen: Seen::default(),
                sent: 0,
            };
            assert_eq!(watching.want(0), Want::Connect);
            let Want::Send(request) = watching.want(0) else {
                panic!("it asks")
            };
            assert!(request.starts_with(b"GET /o/100000 HTTP/1.1\r\nHost: h:1\r\n"));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n");
            watching.take(0, head.as_bytes()).unwrap();
            watching
        }

        fn now(&mut self, ns: i64) -> (&mut Progressive<'a>, Now<'_>) {
            self.player.advance(ns, &mut self.watched);
            let (player, watched, seen) = (&mut self.player, &mut self.watched, &mut self.seen);
            (
                &mut self.viewer,
                Now {
                    ns,
                    player,
                    watched,
                    seen,
                },
            )
        }

        fn want(&mut self, ns: i64) -> Want {
            let (viewer, mut now) = self.now(ns);
            viewer.want(&mut now)
        }

        fn take(&mut self, ns: i64, input: &[u8]) -> Result<(), Failure> {
            let (viewer, mut now) = self.now(ns);
            viewer.take(input, &mut now)
        }

        /// A server that sends whatever is read; until when it then does not read.
        fn filled(&mut self, ns: i64) -> Want {
            loop {
                match self.want(ns) {
                    Want::Read(most) => {
                        let bytes = text(0, BYTES)[self.sent..].to_vec();
                        let most = most.min(bytes.len());
                        self.sent += most;
                        self.take(ns, &bytes[..most]).unwrap();
                    }
                    other => return other,
                }
            }
        }
    }

    #[test]
    fn what_plays_while_it_reads_is_no_room() {
        let file = file();
        let mut watching = Watching::new(&file, true);
        let Want::Read(most) = watching.want(0) else {
            panic!("it reads")
        };
        assert_eq!(most, 32_000);
        watching.take(0, &text(0, BYTES)[..most]).unwrap();
        assert_eq!(watching.want(200_000), Want::Pause(SECOND / 2)); // 2 bytes of 8 kB/s have played
    }

    /// It begins to play when all of its buffer is there, however little is lacking.
    #[test]
    fn before_it_plays_the_least_room_is_read() {
        let file = file();
        let mut watching = Watching::with(&file, |rules| rules.startup_ns = rules.buffer_ns);
        assert_eq!(watching.want(0), Want::Read(32_000));
        watching.take(0, &text(0, BYTES)[..31_999]).unwrap();
        assert_eq!(watching.want(0), Want::Read(1));
        watching.take(0, &text(0, BYTES)[31_999..32_000]).unwrap();
        assert_eq!(watching.want(0), Want::Pause(SECOND / 2));
    }

    #[test]
    fn a_buffer_of_a_millisecond_is_filled_too() {
        let file = file();
        let mut watching = Watching::with(&file, |rules| {
            (rules.startup_ns, rules.resume_ns) = (500_000, 500_000);
            rules.buffer_ns = 1_000_000;
        });
        assert_eq!(watching.want(0), Want::Read(8));
        watching.take(0, &text(0, BYTES)[..8]).unwrap();
        assert_eq!(watching.want(100_000), Want::Pause(250_000));
        assert_eq!(watching.want(250_000), Want::Read(2));
    }

    #[test]
    fn paced_it_reads_its_buffer_full_and_then_as_it_plays() {
        let file = file();
        let mut watching = Watching::new(&file, true);
        assert_eq!(watching.filled(0), Want::Pause(SECOND / 2));
        assert_eq!(watching.sent, 32_000);
        assert_eq!(watching.want(SECOND / 4), Want::Pause(SECOND / 2));
        assert_eq!(watching.filled(SECOND / 2), Want::Pause(SECOND));
        assert_eq!(watching.sent, 36_000);
        for half in 2..17 {
            assert_eq!(
                watching.filled(half * SECOND / 2),
                Want::Pause((half + 1) * SECOND / 2)
            );
        }
        assert_eq!(watching.filled(17 * SECOND / 2), Want::Nothing);
        assert_eq!(watching.sent as u64, BYTES);
        watching.want(12 * SECOND);
        assert_eq!(watching.watched.media_ns, 12 * SECOND);
        assert_eq!(
            (watching.seen.media_bytes, watching.watched.stalls),
            (BYTES, 0)
        );
    }

    #[test]
    fn unpaced_it_reads_on() {
        let file = file();
        let mut watching = Watching::new(&file, false);
        assert_eq!(watching.filled(0), Want::Nothing);
        assert_eq!(watching.watched.media_ns, 12 * SECOND + SECOND / 2);
    }

    /// A viewer that a slow server keeps waiting is held up by a generator that looks late, too: that is to be known.
    #[test]
    fn while_it_fills_it_looks_up_by_itself_several_times_a_second() {
        let file = file();
        let mut watching = Watching::new(&file, true);
        watching.take(0, &text(0, 8000)).unwrap();
        looks_up_by_itself(|now_ns| {
            assert!(matches!(watching.want(now_ns), Want::Read(_)));
            watching.viewer.wakes_ns()
        });
        let mut watching = Watching::new(&file, true);
        watching.filled(0);
        assert_eq!(watching.viewer.wakes_ns(), i64::MAX, "it has its times");
    }

    #[test]
    fn after_a_stall_it_fills_again() {
        let file = file();
        let mut watching = Watching::new(&file, true);
        watching.take(0, &text(0, 8000)).unwrap();
        assert_eq!(watching.want(3 * SECOND), Want::Read(32_000));
        assert_eq!(watching.watched.stalls, 1);
    }

    #[test]
    fn what_is_not_the_file_is_told_by_kind() {
        let file = file();
        let wrong = Watching::new(&file, true).take(0, &text(1, 100));
        assert_eq!(wrong, Err(Failure::Content));
        let mut watching = Watching::new(&file, true);
        watching.take(0, &text(0, 100)).unwrap();
        let (viewer, mut now) = watching.now(1);
        assert_eq!(viewer.closed(&mut now), Err(Failure::Length));
        for (head, kind) in [
            (
                "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n",
                Failure::Status,
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                Failure::Length,
            ),
            ("RTSP/1.0 200 OK\r\n\r\n", Failure::Parse),
        ] {
            let mut fetch = Fetch::new(file.right);
            assert_eq!(fetch.take(head.as_bytes(), |_| ()), Err(kind), "{head}");
        }
        assert_eq!(Fetch::new(file.right).closed(), Err(Failure::Reset));
    }
}
