//! Duties of the first process of a virtual machine, and its last.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;

use crate::agent::{failed, Outcome};
use crate::rtnetlink;

/// What a guest needs mounted: (type, where, flags, options).
const MOUNTS: [(&str, &str, libc::c_ulong, &str); 6] = [
    (
        "proc",
        "/proc",
        libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
        "",
    ),
    (
        "sysfs",
        "/sys",
        libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
        "",
    ),
    (
        "cgroup2",
        "/sys/fs/cgroup",
        libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
        "",
    ),
    ("devtmpfs", "/dev", libc::MS_NOSUID, "mode=755"),
    (
        "devpts",
        "/dev/pts",
        libc::MS_NOSUID | libc::MS_NOEXEC,
        "mode=620,gid=5,ptmxmode=666",
    ),
    (
        "tmpfs",
        "/dev/shm",
        libc::MS_NOSUID | libc::MS_NODEV,
        "mode=1777,size=100%", // of its memory, as of a container's limit
    ),
];

/// Make the root writable, mount what is not mounted, bring the loopback up. Problems go to stderr (the console).
pub fn prepare_guest() {
    report(
        "remount / writable",
        mount("none", "/", libc::MS_REMOUNT, ""),
    );
    for (kind, target, flags, options) in MOUNTS {
        let _ = fs::create_dir_all(target); // an image need not have it; the mount says better what goes wrong
        report(
            &format!("mount {target}"),
            mount(kind, target, flags, options),
        );
    }
    for (link, target) in [
        ("fd", "self/fd"),
        ("stdin", "self/fd/0"),
        ("stdout", "self/fd/1"),
        ("stderr", "self/fd/2"),
    ] {
        let _ = symlink(format!("/proc/{target}"), format!("/dev/{link}")); // there already, as a rule
    }
    report("bring lo up", rtnetlink::link_up("lo"));
}

/// Write out what is not on the disk yet and switch the machine off. Only a machine's own first process may.
pub fn power_off() -> Outcome {
    if std::process::id() != 1 {
        return failed(
            "this agent is not the machine's first process",
            "",
            "end the instance from outside",
        );
    }
    // SAFETY: neither call involves memory. Success does not return.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
    failed(
        io::Error::last_os_error().to_string(),
        "reboot(2)",
        "end the instance from outside",
    )
}

fn mount(kind: &str, target: &str, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let [kind, target, options] =
        [kind, target, options].map(|text| CString::new(text).expect("no zero byte"));
    // SAFETY: the strings outlive the call.
    let result = unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    };
    match io::Error::last_os_error() {
        _ if result == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::EBUSY) => Ok(()), // mounted already
        error => Err(error),
    }
}

fn report(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        eprintln!("virtoll-agent: cannot {what}: {error}");
    }
}
