//! virtoll-confer: participants of a web conference, who send encoded media and receive that of all others
//! (WebRTC: ICE, DTLS, SRTP, RTP), and decode none of it.
//!
//! The specification is one line of standard input; each further line is an order: so many are to be in the room. They
//! join one after another, and when all have been there for a while, a window begins, of which one line is said. At the
//! end of standard input all leave. Orders are carried out one after another; nobody leaves between them.
//!
//! `room.rs` is what differs between servers, `janus.rs` and `livekit.rs` are two; `participant.rs` is who joins, `sending.rs` and
//! `receiving.rs` its media, `frames.rs` what could be shown of them, `codec.rs` of which codec; `audio.rs` what it says and
//! hears; `worker.rs` who drives them.
//!
//! Exit 1 and a message on standard error when the generator itself failed. Participants who fail are data.

mod audio;
mod bridge;
mod codec;
mod counting;
mod crypto;
#[cfg(test)]
mod fake;
mod film;
mod first;
mod frames;
mod h264;
mod janus;
mod janus_said;
mod line;
mod livekit;
mod livekit_said;
mod lookout;
mod mix;
mod participant;
mod peer;
mod play;
mod receiving;
mod room;
mod sending;
mod sound;
mod spec;
mod stream;
mod tally;
mod vp8;
mod worker;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::process::ExitCode;

use virtoll_generator::crew::{self, Crew, Seat};
use virtoll_generator::time::not_passed;
use virtoll_generator::{sys, Failed};

use janus::Janus;
use livekit::LiveKit;
use peer::{Clock, Common};
use room::Room;
use sound::Sound;
use spec::{ConferSpec, Order, Role, Server, PARTICIPANTS_MAX};
use tally::{Report, Span, Tally};
use worker::{Task, Worker};

/// For all threads to be ready.
const START_DELAY_NS: i64 = 2_000_000;
/// A WebSocket, with a second descriptor of it, and three sockets of media.
const DESCRIPTORS_EACH: u64 = 5;

/// What all threads have in common.
pub struct Shared<'a> {
    pub spec: &'a ConferSpec,
    pub roles: &'a [Role],
    /// What speakers say, where there is audio.
    pub sound: Option<Sound>,
    pub common: Common,
}

impl Shared<'_> {
    /// By what the server calls a sender: the number of its role, or, of nobody of ours, one more.
    pub fn role_named(&self, display: &str) -> usize {
        let name = display
            .strip_prefix("virtoll ")
            .and_then(|rest| rest.split_once(' '));
        let role = name.and_then(|(_, name)| self.roles.iter().position(|role| role.name == name));
        role.unwrap_or(self.roles.len())
    }

    /// What a participant says: those who join first speak.
    pub fn says(&self, number: usize) -> Option<&Sound> {
        let audio = self.spec.server.audio()?;
        self.sound.as_ref().filter(|_| number < audio.speakers)
    }

    pub fn room(&self, number: usize, role: usize) -> Box<dyn Room + '_> {
        let role = &self.roles[role];
        let display = format!("virtoll {number} {}", role.name);
        match &self.spec.server {
            Server::Janus(spec) => {
                let speaks = self.says(number).is_some();
                Box::new(Janus::new(spec, display, role.watches, speaks))
            }
            Server::LiveKit(spec) => Box::new(LiveKit::new(spec, display, role.watches)),
        }
    }
}

const USAGE: &str =
    "usage: virtoll-confer  (JSON on standard input: a specification, then an order a line)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => run(),
        ["--version"] => {
            println!("virtoll-confer {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        _ => Err(Failed(USAGE.into())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed(why)) => {
            eprintln!("virtoll-confer: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Carry out the orders of standard input.
fn run() -> Result<(), Failed> {
    let (spec, orders) = crew::asked::<ConferSpec>()?;
    let roles = spec.roles()?;
    let audio = spec.server.audio();
    let sound = audio.map(|audio| Sound::read(&audio.sound)).transpose()?;
    let descriptors = PARTICIPANTS_MAX as u64 * DESCRIPTORS_EACH + spec.threads as u64 * 4 + 64;
    sys::raise_open_files(descriptors).map_err(|error| Failed::own_limit(&error))?;
    let shared = Shared {
        spec: &spec,
        roles: &roles,
        sound,
        common: Common {
            clock: Clock::new(),
            crypto: crypto::provider(),
            certificate: crypto::certificate()?,
            local: local_address(spec.server.address())?,
            codec: spec.codec,
        },
    };
    carried_out(&shared, orders, &mut |report| crew::say(report))
}

/// From which of this machine's addresses the server is reached.
fn local_address(server: SocketAddrV4) -> Result<Ipv4Addr, Failed> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let connected =
        socket.and_then(|socket| socket.connect(server).and_then(|()| socket.local_addr()));
    match connected {
        Ok(SocketAddr::V4(local)) => Ok(*local.ip()),
        Ok(_) => Err(Failed(format!("{server} is not reached over IPv4"))),
        Err(error) => Err(Failed(format!(
            "there is no way to {server}: {error}; give the generator's machine a route"
        ))),
    }
}

fn carried_out(
    shared: &Shared,
    orders: impl Iterator<Item = Result<String, Failed>>,
    say: &mut dyn FnMut(&Report) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let work = |seat: Seat<Task, Tally>| Worker::new(shared, seat)?.run();
    crew::at_work(shared.spec.threads, &shared.spec.cpus, work, |crew| {
        in_turn(shared, crew, orders, say)
    })
}

/// One order after another.
fn in_turn(
    shared: &Shared,
    crew: &Crew<Task, Tally>,
    orders: impl Iterator<Item = Result<String, Failed>>,
    say: &mut dyn FnMut(&Report) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let mut before = 0;
    for line in orders {
        let order = crew::order::<Order>(&line?)?.checked(shared.spec)?;
        let task = task(&order, before, sys::now_ns())?;
        before = order.participants;
        let Some(mut tallies) = crew.carried_out(&task) else {
            return Ok(());
        };
        let mut sum = tallies.swap_remove(0);
        tallies.iter().for_each(|tally| sum.add(tally));
        say(&Report::new(&sum, shared.roles, order.participants))?;
    }
    Ok(())
}

/// When who joins, and when the window is.
fn task(order: &Order, before: usize, now_ns: i64) -> Result<Task, Failed> {
    let joins = order.participants.saturating_sub(before);
    let lead_ns = joins.saturating_sub(1) as i64 * order.every_ns + order.settle_ns;
    let first_ns = match order.start_ns {
        None => now_ns + START_DELAY_NS,
        Some(start_ns) => not_passed(start_ns.saturating_sub(lead_ns), now_ns, "it was read")?,
    };
    let from_ns = first_ns + lead_ns;
    Ok(Task {
        participants: order.participants,
        first_ns,
        every_ns: order.every_ns,
        span: Span {
            from_ns,
            until_ns: from_ns + order.duration_ns,
        },
        before,
    })
}

#[cfg(test)]
#[path = "confer_tests.rs"]
mod tests;
