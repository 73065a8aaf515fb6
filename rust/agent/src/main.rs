//! virtoll-agent: the one small program inside every instance. It answers requests on a byte stream, samples
//! counters, proves limits, and on the end of the stream ends whatever it started (docs/PROTOCOL.md).

mod agent;
mod boot;
mod burn;
mod channel;
mod children;
mod crowd;
mod describe;
mod devices;
mod disk;
mod exec;
mod facts;
mod files;
mod guest;
mod hogs;
mod parse;
mod paths;
mod rtnetlink;
mod sampler;
mod sockets;
mod threads;
mod user;
mod walk;
mod yardstick;

use std::path::PathBuf;
use std::process::ExitCode;

use agent::Agent;
use channel::Channel;

const USAGE: &str = "usage: virtoll-agent serve [--device PATH] [--init]
       virtoll-agent probe NAME [--KEY VALUE]... [--json]
       virtoll-agent peer --port PORT [--address ADDRESS] [--idle-ns NANOSECONDS]
       virtoll-agent aggress NAME [--duration-ns NANOSECONDS] [--KEY VALUE]...
       virtoll-agent burn [--port PORT] [--passes N] [--extra-ns NANOSECONDS]
       virtoll-agent yardstick
       virtoll-agent --version

  serve          answer requests on stdin and stdout until they end
  --device PATH  on a virtio-serial port (/dev/virtio-ports/NAME) or a tty (/dev/ttyS0) instead
  probe          run one micro benchmark here and now; without NAME, list them
  peer           the other end of the network probes, on one port for TCP and UDP, until it has been idle so long
  aggress        be a neighbour that misbehaves, within caps; without NAME, list them
  burn           serve objects over HTTP, each for so much work and so much CPU time more
  yardstick      tell how fast CPUs are while others compute there, as stdin asks
  --init         first mount what a virtual machine needs (/proc, /sys, /dev, /run, /tmp), as its first process";

/// What the command line asks for.
struct Settings {
    device: Option<PathBuf>,
    init: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["--version"] {
        let version = env!("CARGO_PKG_VERSION");
        let protocol = virtoll_wire::protocol::PROTOCOL;
        let line = format!("virtoll-agent {version} (protocol {protocol})");
        return virtoll_probe::say(&line, ExitCode::SUCCESS);
    }
    if let [word] = &arguments[..] {
        if virtoll_probe::asks_for_help(word) {
            return virtoll_probe::say(USAGE, ExitCode::SUCCESS);
        }
    }
    if let Some((verb, rest)) = arguments.split_first() {
        if verb == "probe" {
            return virtoll_probe::main(rest);
        }
        if verb == "peer" {
            return virtoll_probe::peer(rest);
        }
        if verb == "aggress" {
            return virtoll_aggress::main(rest);
        }
        if verb == "burn" {
            return burn::main(rest);
        }
        if verb == "yardstick" && rest.is_empty() {
            return yardstick::main();
        }
    }
    let Some(settings) = parse_arguments(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let code = serve(&settings);
    if std::process::id() == 1 && settings.init {
        let _ = boot::power_off(); // a first process that returns would be a kernel panic
    }
    code
}

fn parse_arguments(arguments: &[String]) -> Option<Settings> {
    let mut rest = arguments.iter();
    let mut settings = Settings {
        device: None,
        init: false,
    };
    if rest.next()? != "serve" {
        return None;
    }
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--device" => settings.device = Some(PathBuf::from(rest.next()?)),
            "--init" => settings.init = true,
            _ => return None,
        }
    }
    Some(settings)
}

/// A session keyring of the instance's own, empty. The one that is inherited is that of whoever has started virtoll, and
/// what is kept in it is not for root inside. There need be no keyrings, nor the leave to ask for one: a filter of system
/// calls keeps everybody inside from the keys as well.
fn forget_keys() {
    // SAFETY: reads nothing: the keyring has no name.
    unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, 0) };
}

fn serve(settings: &Settings) -> ExitCode {
    forget_keys();
    if settings.init {
        boot::prepare_guest();
    }
    let channel = match &settings.device {
        Some(path) => Channel::device(path),
        None => Channel::stdio(),
    };
    match channel.and_then(Agent::new) {
        Ok(agent) => {
            agent.serve();
            ExitCode::SUCCESS
        }
        Err(error) => {
            let place = settings
                .device
                .as_ref()
                .map_or("stdin and stdout".into(), |path| path.display().to_string());
            eprintln!("virtoll-agent: cannot use {place}: {error}");
            ExitCode::FAILURE
        }
    }
}
