//! What `virtoll-load view` is asked for: one line of JSON, and then one for each order. Times are nanoseconds.

use serde::Deserialize;
use virtoll_generator::random::Random;
use virtoll_generator::time::TIME_MAX_NS;
use virtoll_generator::Failed;

use super::fetch::{Right, Site};
use super::live::{self, clock::Clock};
use super::player::Rules;
use super::progressive::File;
use super::rtmp::{Play, Played};
use super::rtsp::{self, Source, Transport};
use super::segmented::{Format, Quality, Stream};
use super::text;
use crate::rtmp::media::mark_of;
use crate::rtsp::checked_url;
use crate::spec::{Arrival, Target};

const VIEWERS_MAX: usize = 1_000_000;
const THREADS_MAX: usize = 1024;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ViewSpec {
    pub target: Target,
    pub media: Media,
    pub player: PlayerSpec,
    /// Each has its own viewers and event loop.
    pub threads: usize,
    /// CPUs to pin threads to, one each in turn; none: as inherited.
    #[serde(default)]
    pub cpus: Vec<usize>,
    pub join: Join,
    /// How long a viewer stays once play has begun, on average (exponentially distributed); then another joins in its
    /// place. Null: as long as there are media; then it joins again.
    pub stay_ns: Option<i64>,
    /// After a failure another joins in its place so much later.
    pub rest_ns: i64,
    pub seed: u64,
    /// Kernel memory for what has come over a connection and was not read; 0: as much as the kernel finds right.
    pub receive_bytes: u32,
}

/// What is watched.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Media {
    /// One file. `length_bytes` null: whatever length the server says. `text`: it is the endless text's beginning.
    File {
        bit_per_s: u64,
        length_bytes: Option<u64>,
        text: bool,
    },
    /// The target is a playlist.
    Hls(Segments),
    /// The target is an MPD.
    Dash(Segments),
    /// The target is a live playlist, maybe with parts. `clock` null: the server does not tell its time, and ages are not
    /// known.
    Live {
        text: bool,
        clock: Option<ClockSpec>,
    },
    Rtmp(Play),
    /// The target is a presentation. `length_ns` null: as the server says; of what is `live`, none. `mark`: see
    /// `rtmp/media.rs`.
    Rtsp {
        transport: Transport,
        length_ns: Option<i64>,
        live: bool,
        mark: Option<String>,
    },
}

/// The path at which the server tells its time, and how well that must be known.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockSpec {
    pub path: String,
    pub within_ns: i64,
}

/// See `Stream`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segments {
    pub quality: Quality,
    pub text: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlayerSpec {
    pub paced: bool,
    pub startup_ns: i64,
    pub resume_ns: i64,
    pub buffer_ns: i64,
    pub patience_ns: i64,
}

/// The time between two joins; 0: all at once. Poisson: on average.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    pub arrival: Arrival,
    pub every_ns: i64,
}

/// So many are to be there, and what happens is told of a window. Those who are too many leave.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub viewers: usize,
    /// Within the window so many leave, at equal distances, and another joins in the place of each at once; start-ups are
    /// told of those joins that are due within it. Null: nobody does, and they are told of all joins from the order on.
    pub anew: Option<usize>,
    /// How long all of them watch, from the last join on, before the window begins.
    pub settle_ns: i64,
    /// Of the window.
    pub duration_ns: i64,
    /// When the window begins, by CLOCK_MONOTONIC of this machine: viewers begin to join earlier by as long as they
    /// need. Null: they begin at once.
    pub start_ns: Option<i64>,
    /// After the window all pause: nothing is asked for any more, and it is told when nothing is under way. With the next
    /// order they go on at the live edge, one after another at equal distances over so long: a part of the stream, so
    /// that as many come at each moment of one. Null: they watch on.
    #[serde(default)]
    pub pauses_over_ns: Option<i64>,
}

impl Order {
    /// Refuse what cannot be carried out.
    pub fn checked(self, spec: &ViewSpec) -> Result<Self, Failed> {
        let problem = if !(1..=VIEWERS_MAX).contains(&self.viewers) {
            "there must be a viewer, and at most a million"
        } else if !(0..=TIME_MAX_NS).contains(&self.settle_ns) {
            "settle_ns must be at least 0, and at most 30 days"
        } else if !(1..=TIME_MAX_NS).contains(&self.duration_ns) {
            "duration_ns must be above 0, and at most 30 days"
        } else if spec.join.every_ns as f64 * self.viewers as f64 > TIME_MAX_NS as f64 {
            "all must have joined within 30 days"
        } else if self.pauses_over_ns.is_some() && !matches!(spec.media, Media::Live { .. }) {
            "viewers of a live playlist pause, and no others"
        } else if self
            .pauses_over_ns
            .is_some_and(|over_ns| !(1..=TIME_MAX_NS).contains(&over_ns))
        {
            "pauses_over_ns must be above 0, and at most 30 days"
        } else {
            return Ok(self);
        };
        Err(Failed(format!(
            "the order cannot be carried out: {problem}"
        )))
    }
}

/// What each viewer asks for.
#[derive(Debug)]
pub enum Asked {
    File(File),
    Segmented(Stream),
    Live(live::Source),
    Rtmp(Played),
    Rtsp(Source),
}

impl ViewSpec {
    /// Refuse what cannot be measured.
    pub fn checked(self) -> Result<Self, Failed> {
        let player = &self.player;
        let times = [
            self.stay_ns.unwrap_or(1),
            player.startup_ns,
            player.resume_ns,
            player.buffer_ns,
            player.patience_ns,
        ];
        let waits = [self.rest_ns, self.join.every_ns];
        let problem = match &self.media {
            _ if times
                .iter()
                .any(|time_ns| !(1..=TIME_MAX_NS).contains(time_ns)) =>
            {
                "times must be above 0, and at most 30 days"
            }
            _ if waits
                .iter()
                .any(|wait_ns| !(0..=TIME_MAX_NS).contains(wait_ns)) =>
            {
                "rest_ns and every_ns must be at least 0, and at most 30 days"
            }
            _ if self.threads == 0 || self.threads > THREADS_MAX => {
                "threads must be above 0, and at most 1024"
            }
            _ if player.startup_ns.max(player.resume_ns) > player.buffer_ns => {
                "startup_ns and resume_ns must be at most buffer_ns"
            }
            Media::Rtsp { .. } | Media::Live { .. } if !player.paced => {
                "of RTSP and live playlists the server sets the pace: paced must be true"
            }
            Media::Rtsp {
                length_ns: Some(length_ns),
                ..
            } if !(1..=TIME_MAX_NS).contains(length_ns) => {
                "length_ns must be above 0, and at most 30 days"
            }
            _ if self.target.tls.is_some() => "viewers speak plain HTTP: leave out tls",
            Media::File { bit_per_s: 0, .. } => "bit_per_s must be above 0",
            Media::File {
                length_bytes: Some(length),
                ..
            } if !(1..=text::MOST_BYTES).contains(length) => {
                "length_bytes must be above 0, and at most 2^53"
            }
            _ => return Ok(self),
        };
        Err(Failed(format!(
            "the specification cannot be run: {problem}"
        )))
    }

    pub fn rules(&self) -> Rules {
        Rules {
            paced: self.player.paced,
            startup_ns: self.player.startup_ns,
            resume_ns: self.player.resume_ns,
            buffer_ns: self.player.buffer_ns,
            patience_ns: self.player.patience_ns,
        }
    }

    /// Open files that a viewer needs at the least, and at most.
    pub fn descriptors_each(&self) -> (u64, u64) {
        match self.media {
            Media::Rtsp {
                transport: Transport::Udp,
                ..
            } => (rtsp::LEAST_DESCRIPTORS, rtsp::MOST_DESCRIPTORS),
            _ => (1, 1),
        }
    }

    pub fn asked(&self) -> Result<Asked, Failed> {
        Ok(match &self.media {
            Media::File {
                bit_per_s,
                length_bytes,
                text,
            } => {
                let (site, path) = self.site()?;
                let right = Right {
                    length_bytes: *length_bytes,
                    text: text.then_some(0),
                    may_lack: false,
                };
                let bit_per_s = *bit_per_s;
                Asked::File(File {
                    site,
                    path,
                    right,
                    bit_per_s,
                })
            }
            Media::Hls(segments) => self.segmented(Format::Hls, *segments)?,
            Media::Dash(segments) => self.segmented(Format::Dash, *segments)?,
            Media::Live { text, clock } => self.live(*text, clock.as_ref())?,
            Media::Rtmp(play) => Asked::Rtmp(play.checked(&self.target.url)?),
            Media::Rtsp {
                transport,
                length_ns,
                live,
                mark,
            } => Asked::Rtsp(Source {
                url: checked_url(&self.target.url)?,
                transport: *transport,
                length_ns: *length_ns,
                is_live: *live,
                mark: mark.as_deref().map(mark_of).transpose()?,
            }),
        })
    }

    fn segmented(&self, format: Format, segments: Segments) -> Result<Asked, Failed> {
        let (site, path) = self.site()?;
        Ok(Asked::Segmented(Stream {
            site,
            path,
            format,
            quality: segments.quality,
            text: segments.text,
        }))
    }

    fn live(&self, text: bool, clock: Option<&ClockSpec>) -> Result<Asked, Failed> {
        let (site, path) = self.site()?;
        let clock = clock
            .map(|clock| Clock::new(self.target.address, site.get(&clock.path), clock.within_ns));
        Ok(Asked::Live(live::Source {
            site,
            path,
            text,
            clock,
        }))
    }

    /// Of HTTP: whom to ask, and for what path.
    fn site(&self) -> Result<(Site, String), Failed> {
        let (authority, path) = self.target.url_parts()?;
        let site = Site {
            authority: authority.into(),
            proxy: self.target.proxy,
        };
        Ok((site, path.to_owned()))
    }

    /// When so many join, since the first does; ascending.
    pub fn joins_ns(&self, joins: usize, random: &mut Random) -> Vec<i64> {
        let mut at_ns = 0;
        let mut joins_ns = Vec::with_capacity(joins);
        for _ in 0..joins {
            joins_ns.push(at_ns);
            at_ns += match self.join.arrival {
                Arrival::Constant => self.join.every_ns,
                Arrival::Poisson => random.exponential(self.join.every_ns as f64) as i64,
            };
        }
        joins_ns
    }
}
