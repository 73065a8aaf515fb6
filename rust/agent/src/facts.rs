//! What the instance believes about itself.

use std::fs;

use virtoll_wire::protocol::Facts;

/// Gather the facts; what cannot be read is missing.
pub fn facts() -> Facts {
    let system = system();
    Facts {
        cpus: cpus_usable(),
        memory_bytes: read("/proc/meminfo").and_then(|text| memory_bytes(&text)),
        kernel: text(&system.release),
        cpus_online: read("/sys/devices/system/cpu/online").and_then(|list| count_cpus(&list)),
        cpu_model: read("/proc/cpuinfo").and_then(|text| field(&text, "model name")),
        clocksource: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        hostname: text(&system.nodename),
        pid1: read("/proc/1/comm"),
        machine: text(&system.machine),
        kernel_version: text(&system.version),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_string())
}

/// uname(2): where there is no /proc/sys/kernel (gVisor), too.
fn system() -> libc::utsname {
    let mut names = std::mem::MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: uname fills the whole structure; it cannot fail with a valid pointer.
    unsafe {
        libc::uname(names.as_mut_ptr());
        names.assume_init()
    }
}

/// The kernel's release: `6.1.0-18-amd64`.
pub fn kernel() -> String {
    text(&system().release)
}

/// A field of it, which a zero byte ends.
fn text(field: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|&byte| byte as u8)
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).trim().to_string()
}

/// The CPUs in the affinity mask: what `nproc` prints.
fn cpus_usable() -> Option<u32> {
    let mut set = std::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the set is large enough for the size given, and zeroed where the kernel does not write.
    unsafe {
        let size = std::mem::size_of::<libc::cpu_set_t>();
        (libc::sched_getaffinity(0, size, set.as_mut_ptr()) == 0)
            .then(|| libc::CPU_COUNT(set.assume_init_ref()) as u32)
    }
}

/// CPUs in a kernel's list such as "0-3,8".
fn count_cpus(list: &str) -> Option<u32> {
    list.split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(count + last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    })
}

fn field(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let kib: u64 = field(meminfo, "MemTotal")?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        assert_eq!(count_cpus(""), None);
        assert_eq!(count_cpus("3-1"), None);
    }

    #[test]
    fn memory_in_bytes() {
        assert_eq!(
            memory_bytes("MemTotal:       24684096 kB\nMemFree: 1 kB\n"),
            Some(24684096 * 1024)
        );
    }
}
