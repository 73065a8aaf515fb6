//! What virtoll-confer is asked for: one line of JSON, and then one for each order. Times are nanoseconds.

use std::net::SocketAddrV4;
use std::path::PathBuf;

use serde::Deserialize;
use virtoll_generator::time::TIME_MAX_NS;
use virtoll_generator::Failed;

use super::codec::Codec;
use super::film::Film;

pub const PARTICIPANTS_MAX: usize = 100_000;
const THREADS_MAX: usize = 1024;
const ROLES_MAX: usize = 16;
/// Whose streams are told under this name: those of anybody who is none of ours.
pub const OTHER: &str = "other";

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConferSpec {
    pub server: Server,
    pub roles: Vec<RoleSpec>,
    /// Of all that is sent.
    #[serde(default)]
    pub codec: Codec,
    pub threads: usize,
    /// CPUs to pin threads to, one each in turn; none: as inherited.
    #[serde(default)]
    pub cpus: Vec<usize>,
    /// So long joining may take, and a stream's first packet to come.
    pub patience_ns: i64,
    /// After a failure a participant joins again so much later.
    pub rest_ns: i64,
    pub seed: u64,
}

/// Whose room it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Server {
    Janus(JanusSpec),
    LiveKit(LiveKitSpec),
}

/// A room of Janus's VideoRoom, over a WebSocket.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JanusSpec {
    pub address: SocketAddrV4,
    pub path: String,
    pub room: u64,
    pub pin: Option<String>,
    pub token: Option<String>,
    pub api_secret: Option<String>,
    /// None: there is no audio.
    #[serde(default)]
    pub audio: Option<AudioSpec>,
}

/// A room of Janus's AudioBridge, which all join.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AudioSpec {
    pub room: u64,
    /// So many of those who join first are heard.
    pub speakers: usize,
    /// What they say: an Ogg file of Opus.
    pub sound: PathBuf,
    /// What the mix is to have.
    pub bitrate_bit_per_s: u64,
}

/// A room of a LiveKit server, which whoever has the key's secret may open.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveKitSpec {
    pub address: SocketAddrV4,
    pub room: String,
    pub key: String,
    pub secret: String,
}

impl Server {
    pub fn address(&self) -> SocketAddrV4 {
        match self {
            Server::Janus(janus) => janus.address,
            Server::LiveKit(livekit) => livekit.address,
        }
    }

    pub fn audio(&self) -> Option<&AudioSpec> {
        match self {
            Server::Janus(janus) => janus.audio.as_ref(),
            Server::LiveKit(_) => None,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleSpec {
    pub name: String,
    /// None: all that are left.
    pub count: Option<usize>,
    /// None: it sends nothing.
    pub film: Option<PathBuf>,
    pub watches: bool,
}

/// So many are to be in the room, and what happens is told of a window.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub participants: usize,
    /// The time between two joins; 0: all at once.
    pub every_ns: i64,
    /// From the last join on.
    pub settle_ns: i64,
    pub duration_ns: i64,
    /// When the window begins; None: as early as can be.
    pub start_ns: Option<i64>,
}

/// What one of the participants does.
#[derive(Debug)]
pub struct Role {
    pub name: String,
    pub film: Option<Film>,
    pub watches: bool,
}

impl ConferSpec {
    /// The roles, with their films read; refuse what cannot be run.
    pub fn roles(&self) -> Result<Vec<Role>, Failed> {
        let problem = self.problem();
        if let Some(problem) = problem {
            return Err(Failed(format!(
                "the specification cannot be run: {problem}"
            )));
        }
        let role = |role: &RoleSpec| {
            Ok(Role {
                name: role.name.clone(),
                film: role.film.as_deref().map(Film::read).transpose()?,
                watches: role.watches,
            })
        };
        let roles: Vec<Role> = self.roles.iter().map(role).collect::<Result<_, Failed>>()?;
        let is_other = |role: &&Role| {
            role.film
                .as_ref()
                .is_some_and(|film| film.codec != self.codec)
        };
        match roles.iter().find(is_other) {
            Some(role) => Err(Failed(format!(
                "the film of {:?} is not of the conference's codec, {:?}: give it one that is",
                role.name, self.codec
            ))),
            None => Ok(roles),
        }
    }

    fn problem(&self) -> Option<&'static str> {
        let times = [self.patience_ns, self.rest_ns];
        let before_last = self.roles.len().saturating_sub(1);
        let names: std::collections::BTreeSet<_> =
            self.roles.iter().map(|role| &role.name).collect();
        if self.roles.is_empty() || self.roles.len() > ROLES_MAX {
            Some("there must be a role, and at most 16")
        } else if !self.roles.iter().all(|role| is_name(&role.name)) {
            Some("a role's name is 1 to 32 of a-z 0-9 _ -, and not \"other\"")
        } else if names.len() < self.roles.len() {
            Some("two roles have one name")
        } else if self.roles[..before_last]
            .iter()
            .any(|role| role.count.is_none())
        {
            Some("only the last role's count may be null")
        } else if times.iter().any(|ns| !(1..=TIME_MAX_NS).contains(ns)) {
            Some("patience_ns and rest_ns must be above 0, and at most 30 days")
        } else if self.threads == 0 || self.threads > THREADS_MAX {
            Some("threads must be above 0, and at most 1024")
        } else {
            None
        }
    }

    /// The role of a participant: they join in the order of the roles.
    pub fn role_of(&self, number: usize) -> Option<usize> {
        let mut end = 0usize;
        self.roles.iter().position(|role| {
            end = end.saturating_add(role.count.unwrap_or(PARTICIPANTS_MAX));
            number < end
        })
    }
}

fn is_name(name: &str) -> bool {
    let is_right =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    (1..=32).contains(&name.len()) && name.bytes().all(is_right) && name != OTHER
}

impl Order {
    pub fn checked(self, spec: &ConferSpec) -> Result<Self, Failed> {
        let waits = [self.every_ns, self.settle_ns];
        let problem = if !(1..=PARTICIPANTS_MAX).contains(&self.participants) {
            "there must be a participant, and at most 100,000"
        } else if spec.role_of(self.participants - 1).is_none() {
            "there are more participants than roles: let the last role's count be null"
        } else if waits.iter().any(|ns| !(0..=TIME_MAX_NS).contains(ns)) {
            "every_ns and settle_ns must be at least 0, and at most 30 days"
        } else if self.every_ns as f64 * self.participants as f64 > TIME_MAX_NS as f64 {
            "all must have joined within 30 days"
        } else if !(1..=TIME_MAX_NS).contains(&self.duration_ns) {
            "duration_ns must be above 0, and at most 30 days"
        } else {
            return Ok(self);
        };
        Err(Failed(format!(
            "the order cannot be carried out: {problem}"
        )))
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::film::tests::ivf;
    use super::*;

    pub const SPEC: &str = r#"{"server": {"janus": {"address": "127.0.0.1:1", "path": "/", "room": 1234, "pin": null,
        "token": null, "api_secret": null}},
        "roles": [{"name": "webcam", "count": 2, "film": null, "watches": true},
                  {"name": "desktop", "count": 1, "film": null, "watches": true},
                  {"name": "watcher", "count": null, "film": null, "watches": true}],
        "threads": 1, "cpus": [], "patience_ns": 1000, "rest_ns": 1000, "seed": 7}"#;
    const ORDER: &str =
        r#"{"participants": 5, "every_ns": 0, "settle_ns": 0, "duration_ns": 1, "start_ns": null}"#;

    pub fn spec() -> ConferSpec {
        serde_json::from_str(SPEC).unwrap()
    }

    #[test]
    fn participants_take_the_roles_in_their_order() {
        let spec = spec();
        let roles: Vec<_> = (0..5).map(|number| spec.role_of(number)).collect();
        assert_eq!(roles, [Some(0), Some(0), Some(1), Some(2), Some(2)]);
        assert_eq!(spec.roles().unwrap().len(), 3);
        let mut few = spec;
        few.roles.pop();
        assert_eq!(few.role_of(3), None);
        let order: Order = serde_json::from_str(ORDER).unwrap();
        assert!(order.checked(&few).is_err());
        assert!(Order {
            participants: 3,
            ..order
        }
        .checked(&few)
        .is_ok());
    }

    #[test]
    fn a_film_of_another_codec_is_refused() {
        let name = format!("virtoll-confer-{}-codec.ivf", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, ivf(10, 20)).unwrap();
        let mut spec = spec();
        spec.roles[1].film = Some(path.clone());
        assert!(spec.roles().is_ok());
        spec.codec = Codec::H264;
        let refused = spec.roles().unwrap_err();
        std::fs::remove_file(path).unwrap();
        assert!(
            refused.0.contains("the film of \"desktop\""),
            "{}",
            refused.0
        );
    }

    #[test]
    fn what_cannot_be_run_is_refused() {
        let wrong: [fn(&mut ConferSpec); 6] = [
            |spec| spec.roles.clear(),
            |spec| spec.roles[0].count = None,
            |spec| spec.roles[0].name = "other".into(),
            |spec| spec.roles[0].name = "watcher".into(),
            |spec| spec.threads = 0,
            |spec| spec.patience_ns = 0,
        ];
        for (index, change) in wrong.iter().enumerate() {
            let mut spec = spec();
            change(&mut spec);
            assert!(spec.roles().is_err(), "{index}");
        }
        let order: Order = serde_json::from_str(ORDER).unwrap();
        for order in [
            Order {
                participants: 0,
                ..order
            },
            Order {
                participants: PARTICIPANTS_MAX + 1,
                ..order
            },
            Order {
                duration_ns: 0,
                ..order
            },
            Order {
                every_ns: -1,
                ..order
            },
            Order {
                every_ns: TIME_MAX_NS,
                ..order
            },
        ] {
            assert!(order.checked(&spec()).is_err(), "{order:?}");
        }
    }
}
