//! What a host gives a container from outside, and a virtual machine's first process must give itself: its name, its
//! limit of processes, its network.

use std::fs;
use std::io;
use std::net::Ipv4Addr;

use virtoll_wire::protocol::Guest;

use crate::agent::{done, failed, Halt, Outcome};
use crate::rtnetlink;

const GROUPS: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/instance";
const MOST_TASKS: &str = "/proc/sys/kernel/threads-max";

/// Configure this machine. Only its own first process may: the same program watches instances from the host.
pub fn configure(guest: &Guest) -> Outcome {
    if std::process::id() != 1 {
        return failed(
            "this agent is not the machine's first process",
            "",
            "configure the instance from outside",
        );
    }
    tried("set the name", "/proc/sys/kernel/hostname", || {
        fs::write("/proc/sys/kernel/hostname", &guest.hostname)
    })?;
    limit_processes(guest.pids)?;
    connect(guest)?;
    done()
}

/// A guest has no host that could limit its processes: a control group of its own kernel does, as the host's does with
/// a container's. The kernel's threads, which come and go, are not in it; there must be room for both.
fn limit_processes(pids: u64) -> Result<(), Halt> {
    tried("make room for processes", MOST_TASKS, || {
        let room =
            tasks(&fs::read_to_string("/proc/loadavg")?)?.saturating_add(pids.saturating_mul(2));
        match fs::read_to_string(MOST_TASKS)?.trim().parse::<u64>() {
            Ok(most) if most >= room => Ok(()),
            _ => fs::write(MOST_TASKS, room.to_string()),
        }
    })?;
    tried("limit the processes", GROUP, || {
        fs::write(format!("{GROUPS}/cgroup.subtree_control"), "+pids")?;
        fs::create_dir_all(GROUP)?;
        fs::write(format!("{GROUP}/pids.max"), pids.to_string())?;
        fs::write(format!("{GROUP}/cgroup.procs"), "1")
    })
}

/// How many tasks there are: `RUNNING/ALL`, the fourth field of /proc/loadavg.
fn tasks(loadavg: &str) -> io::Result<u64> {
    let field = loadavg.split_ascii_whitespace().nth(3).unwrap_or_default();
    let all = field.split_once('/').and_then(|(_, all)| all.parse().ok());
    all.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn connect(guest: &Guest) -> Result<(), Halt> {
    let device = &guest.device;
    let address = ipv4(&guest.address)?;
    let gateway = guest.gateway.as_deref().map(ipv4).transpose()?;
    tried("bring the device up", device, || rtnetlink::link_up(device))?;
    tried("give the device its address", device, || {
        rtnetlink::add_address(device, address, guest.prefix_length)
    })?;
    let Some(gateway) = gateway else {
        return Ok(());
    };
    if guest.on_link_gateway {
        tried("reach the gateway by the device", device, || {
            rtnetlink::add_neighbour_route(device, gateway)
        })?;
    }
    tried("set the default route", device, || {
        rtnetlink::add_default_route(device, gateway)
    })
}

fn ipv4(text: &str) -> Result<Ipv4Addr, Halt> {
    text.parse()
        .or_else(|_| failed("not an address of IPv4", text, "write it as 198.18.3.10"))
}

fn tried(what: &str, place: &str, attempt: impl FnOnce() -> io::Result<()>) -> Result<(), Halt> {
    attempt().or_else(|error| {
        let remedy =
            "see that the guest's kernel has a driver for the device, control groups and IPv4";
        failed(format!("cannot {what}: {error}"), place, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_kernel() {
        assert_eq!(tasks("0.00 0.01 0.05 1/73 301\n").unwrap(), 73);
        assert!(tasks("0.00\n").is_err());
    }
}
