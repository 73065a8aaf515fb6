//! How much memory is to be had here, so that what cannot fit is refused and not killed.

use std::fs;

use crate::report::Failed;

/// Of what the system calls available, so much may be asked for: the rest is for page tables and for others.
const TENTHS: u64 = 9;

/// Refuse what does not fit: `unit_count` times `unit_bytes` and a multiple of `step_bytes` each. The message names the
/// largest `key` that fits.
pub fn demand(key: &str, unit_bytes: u64, unit_count: u64, step_bytes: u64) -> Result<(), Failed> {
    let Some(room_bytes) = room_bytes() else {
        return Ok(());
    };
    refuse_above(room_bytes, key, unit_bytes, unit_count, step_bytes)
}

fn refuse_above(
    room_bytes: u64,
    key: &str,
    unit_bytes: u64,
    unit_count: u64,
    step_bytes: u64,
) -> Result<(), Failed> {
    let wanted = unit_bytes.saturating_mul(unit_count);
    if wanted <= room_bytes {
        return Ok(());
    }
    let largest = room_bytes / unit_count / step_bytes * step_bytes;
    Err(Failed::new(
        "memory",
        format!(
            "{unit_count} x {unit_bytes} bytes do not fit: {room_bytes} bytes are to be had; \
             the largest {key} that fits is {largest}"
        ),
        key,
        "choose a smaller size, fewer threads, or more memory for the instance",
    ))
}

/// Bytes that may be asked for; None where the system does not tell.
pub fn room_bytes() -> Option<u64> {
    let available = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available_bytes(&text));
    let places = fs::read_to_string("/proc/self/cgroup")
        .map_or_else(|_| Vec::new(), |text| limit_files(&text));
    let limits = places
        .iter()
        .filter_map(|place| fs::read_to_string(place).ok()?.trim().parse().ok());
    limits
        .chain(available)
        .min()
        .map(|bytes: u64| bytes / 10 * TENTHS)
}

fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Where the limits of this process's control group stand, in cgroup v1 and v2, as the host or the group itself sees it.
fn limit_files(own_groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in own_groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        files.push(format!("{root}{path}/{file}"));
        files.push(format!("{root}/{file}"));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_the_largest_that_does() {
        assert!(refuse_above(1000, "--block-bytes", 500, 2, 10).is_ok());
        let failed = refuse_above(1000, "--block-bytes", 501, 2, 64).expect_err("does not fit");
        assert_eq!(failed.kind, "memory");
        assert!(failed.what.ends_with("is 448"), "{}", failed.what);
        assert!(refuse_above(1000, "--block-bytes", u64::MAX, 2, 64).is_err());
    }

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal: 2048 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(available_bytes(text), Some(1024 * 1024));
        assert_eq!(available_bytes("MemTotal: 2048 kB\n"), None);
    }

    #[test]
    fn both_kinds_of_control_groups_are_asked() {
        let v1 = limit_files("11:memory:/docker/0a\n10:cpu,cpuacct:/x\n");
        assert_eq!(
            v1,
            [
                "/sys/fs/cgroup/memory/docker/0a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
        assert_eq!(limit_files("0::/a\n")[0], "/sys/fs/cgroup/a/memory.max");
    }
}
