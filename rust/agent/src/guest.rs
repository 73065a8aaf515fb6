//! What a host gives a container from outside, and a virtual machine's first process must give itself: its name, its
//! limits of processes and open files, its network.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use virtoll_wire::protocol::Guest;

use crate::agent::{done, failed, Halt, Outcome};
use crate::rtnetlink;

#[cfg(target_env = "musl")]
type Resource = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Resource = libc::__rlimit_resource_t;

const GROUPS: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/instance";
const KERNEL: &str = "/proc/sys/kernel";
const NR_OPEN: &str = "/proc/sys/fs/nr_open"; // beyond which nobody's limit of open files may be
const FILE_MAX: &str = "/proc/sys/fs/file-max"; // beyond which nobody but root opens any
const NET: &str = "/proc/sys/net";
// Of all devices, as the lab's own namespaces have it (virtoll.lab.wiring, EVERYWHERE).
const EVERYWHERE: [(&str, &str, &str); 2] = [
    ("ipv6/conf", "disable_ipv6", "1"),
    ("ipv4/conf", "rp_filter", "0"),
];
const LOAD: &str = "/proc/loadavg";
const MOST_NUMBERS: u64 = 1 << 22; // of tasks, that a kernel gives (PID_MAX_LIMIT)
const RESERVED_NUMBERS: u64 = 300; // those below are given once, to whoever comes first (RESERVED_PIDS)

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
    limit_open_files(guest.open_files)?;
    follow_the_lab(Path::new(NET))?;
    connect(guest)?;
    done()
}

/// A guest has no host that could limit its processes: a control group of its own kernel does, as the host's does with
/// a container's. The kernel's threads, which come and go, are not in it; there must be room for both.
fn limit_processes(pids: u64) -> Result<(), Halt> {
    let already = tried("count the tasks", LOAD, || {
        tasks(&fs::read_to_string(LOAD)?)
    })?;
    let room = already.saturating_add(pids.saturating_mul(2));
    make_room(Path::new(KERNEL), room)?;
    make_users_room(room)?;
    tried("limit the processes", GROUP, || {
        fs::write(format!("{GROUPS}/cgroup.subtree_control"), "+pids")?;
        fs::create_dir_all(GROUP)?;
        fs::write(format!("{GROUP}/pids.max"), pids.to_string())?;
        fs::write(format!("{GROUP}/cgroup.procs"), "1")
    })
}

/// For so many tasks, each with a number; what there is room for already is not taken away.
fn make_room(kernel: &Path, tasks: u64) -> Result<(), Halt> {
    for (name, spare) in [("threads-max", 0), ("pid_max", RESERVED_NUMBERS)] {
        let file = kernel.join(name);
        let room = tasks.saturating_add(spare).min(MOST_NUMBERS);
        tried("make room for processes", &file.to_string_lossy(), || {
            raise(&file, room)
        })?;
    }
    Ok(())
}

/// A user who is not root has half the tasks for which there was room when this machine began.
fn make_users_room(tasks: u64) -> Result<(), Halt> {
    let (soft, hard) = limit_of(libc::RLIMIT_NPROC)?;
    limit(
        libc::RLIMIT_NPROC,
        "processes",
        (soft.max(tasks), hard.max(tasks)),
    )
}

fn limit_of(resource: Resource) -> Result<(u64, u64), Halt> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    tried("read a limit", "getrlimit(2)", || {
        // SAFETY: `limit` is a valid rlimit to write to.
        match unsafe { libc::getrlimit(resource, &mut limit) } {
            0 => Ok((limit.rlim_cur, limit.rlim_max)),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

fn limit(resource: Resource, of: &str, (soft, hard): (u64, u64)) -> Result<(), Halt> {
    let limit = libc::rlimit {
        rlim_cur: soft,
        rlim_max: hard,
    };
    tried(&format!("limit {of}"), "setrlimit(2)", || {
        // SAFETY: `limit` is a valid rlimit to read from.
        match unsafe { libc::setrlimit(resource, &limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

/// As processes on the host have them, from whoever has started virtoll; all that this one starts inherits them. By
/// itself a kernel's first process has 1024 and 4096, at which a server ends whatever CPU it has left.
fn limit_open_files((soft, hard): (u64, u64)) -> Result<(), Halt> {
    for file in [NR_OPEN, FILE_MAX] {
        tried("make room for open files", file, || {
            raise(Path::new(file), hard)
        })?;
    }
    limit(libc::RLIMIT_NOFILE, "open files", (soft, hard))
}

/// Let a setting of the kernel be so much, if it is less.
fn raise(file: &Path, least: u64) -> io::Result<()> {
    match fs::read_to_string(file)?.trim().parse::<u64>() {
        Ok(most) if most >= least => Ok(()),
        _ => fs::write(file, least.to_string()),
    }
}

/// How many tasks there are: `RUNNING/ALL`, the fourth field of /proc/loadavg.
fn tasks(loadavg: &str) -> io::Result<u64> {
    let field = loadavg.split_ascii_whitespace().nth(3).unwrap_or_default();
    let all = field.split_once('/').and_then(|(_, all)| all.parse().ok());
    all.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A server that finds IPv6 opens other sockets. What this kernel does not have need not be set.
fn follow_the_lab(net: &Path) -> Result<(), Halt> {
    for (devices, name, value) in EVERYWHERE {
        let devices = net.join(devices);
        if !devices.exists() {
            continue;
        }
        let what = format!("set {name} of all devices");
        tried(&what, &devices.to_string_lossy(), || {
            for device in fs::read_dir(&devices)? {
                fs::write(device?.path().join(name), value)?;
            }
            Ok(())
        })?;
    }
    Ok(())
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

fn tried<T>(what: &str, place: &str, attempt: impl FnOnce() -> io::Result<T>) -> Result<T, Halt> {
    attempt().or_else(|error| {
        let remedy =
            "see that the guest's kernel has a driver for the device, control groups and IPv4";
        failed(format!("cannot {what}: {error}"), place, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use virtoll_probe::names::unique;

    #[test]
    fn there_is_room_for_many_processes() {
        let kernel = std::env::temp_dir().join(unique("virtoll-kernel"));
        fs::create_dir(&kernel).unwrap();
        fs::write(kernel.join("threads-max"), "3000\n").unwrap();
        fs::write(kernel.join("pid_max"), "32768\n").unwrap();
        for (tasks, threads_max, pid_max) in [
            (1_100, "3000", "32768"),
            (40_000, "40000", "40300"),
            (20_000, "40000", "40300"), // never lowered
            (1 << 40, "4194304", "4194304"),
        ] {
            assert!(make_room(&kernel, tasks).is_ok());
            let told = |name: &str| fs::read_to_string(kernel.join(name)).unwrap();
            assert_eq!(told("threads-max").trim(), threads_max);
            assert_eq!(told("pid_max").trim(), pid_max);
        }
        fs::remove_dir_all(&kernel).unwrap();
    }

    #[test]
    fn all_devices_are_told_what_the_labs_are() {
        let net = std::env::temp_dir().join(unique("virtoll-net"));
        assert!(follow_the_lab(&net).is_ok(), "there is neither");
        for (devices, name, value) in EVERYWHERE {
            let files = ["all", "default", "lo"].map(|it| net.join(devices).join(it).join(name));
            for file in &files {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "2\n").unwrap();
            }
            assert!(follow_the_lab(&net).is_ok());
            for file in &files {
                assert_eq!(fs::read_to_string(file).unwrap(), value);
            }
        }
        fs::remove_dir_all(&net).unwrap();
    }

    #[test]
    fn open_files_are_limited_or_it_is_told() {
        let own = limit_of(libc::RLIMIT_NOFILE).unwrap_or_default();
        assert!(limit(libc::RLIMIT_NOFILE, "open files", own).is_ok());
        assert!(limit(libc::RLIMIT_NOFILE, "open files", (2, 1)).is_err());
    }

    #[test]
    fn tasks_of_a_kernel() {
        assert_eq!(tasks("0.00 0.01 0.05 1/73 301\n").unwrap(), 73);
        assert!(tasks("0.00\n").is_err());
    }
}
