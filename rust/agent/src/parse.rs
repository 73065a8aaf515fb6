//! Counters out of the kernel's text files. Each kind of file has a fixed list of counters; a counter that the
//! text does not hold stays MISSING. The forms are those of proc(5) and the kernel's cgroup documentation.

use virtoll_wire::protocol::Kind;

use crate::threads;

/// Stands for a value that could not be read. No counter of the kernel has it.
pub const MISSING: i64 = i64::MIN;

/// The most counters of any kind.
pub const MOST_COUNTERS: usize = 6;

const TICK_NS: i64 = 10_000_000; // USER_HZ is 100 in the kernel's interface on x86
const PAGE_BYTES: i64 = 4096;
const SECTOR_BYTES: i64 = 512; // of /proc/diskstats, whatever the device's own

/// Keys of cpu.stat (cgroup v2) and memory.stat (v1: the totals with all sub-groups; v2), their counter, their unit.
const KEYS: [(&str, usize, i64); 7] = [
    ("usage_usec", 0, 1000),
    ("user_usec", 1, 1000),
    ("system_usec", 2, 1000),
    ("total_rss", 3, 1),
    ("anon", 3, 1),
    ("total_cache", 4, 1),
    ("file", 4, 1),
];

/// Version 1 tells the group's own first, then the total with all sub-groups.
const SHARED_KEYS: [&str; 2] = ["shmem", "total_shmem"];

const MEMINFO_KEYS: [&str; 4] = ["MemTotal:", "MemAvailable:", "AnonPages:", "Cached:"];

/// The counters of a kind, in the order in which `parse` gives their values. An integer's name is its source's.
pub fn counters(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Integer => &[""],
        Kind::Keyed => &[
            "cpu.usage_ns",
            "cpu.user_ns",
            "cpu.system_ns",
            "memory.resident_bytes",
            "memory.cache_bytes",
        ],
        Kind::Psi => &["some_us", "full_us"],
        Kind::Stat => &[
            "cpu.usage_ns",
            "cpu.user_ns",
            "cpu.system_ns",
            "cpu.idle_ns",
            "cpu.steal_ns",
            "context_switches",
        ],
        Kind::Meminfo => &[
            "memory.total_bytes",
            "memory.available_bytes",
            "memory.rss_bytes",
            "memory.cache_bytes",
        ],
        Kind::Netdev => &[
            "net.rx_bytes",
            "net.rx_packets",
            "net.tx_bytes",
            "net.tx_packets",
        ],
        Kind::Pidstat => &[
            "cpu.usage_ns",
            "cpu.user_ns",
            "cpu.system_ns",
            "memory.rss_bytes",
        ],
        Kind::Diskstats | Kind::Blkio | Kind::IoStat => &["io.read_bytes", "io.write_bytes"],
        Kind::Threads => &threads::COUNTERS,
    }
}

/// Find a kind's counters in a file's text; `values` gets one a counter. `only` names the interfaces that count.
pub fn parse(kind: Kind, only: &[String], text: &[u8], values: &mut [i64]) {
    values.fill(MISSING);
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    match kind {
        Kind::Integer => values[0] = number(text.trim_ascii_end()),
        Kind::Keyed => keyed(text, values),
        Kind::Psi => psi(text, values),
        Kind::Stat => stat(text, values),
        Kind::Meminfo => meminfo(text, values),
        Kind::Netdev => netdev(text, only, values),
        Kind::Pidstat => pidstat(text, values),
        Kind::Diskstats => diskstats(text, values),
        Kind::Blkio => blkio(text, values),
        Kind::IoStat => io_stat(text, values),
        Kind::Threads => {} // no text: threads::Threads looks itself
    }
}

/// What a kind's counters are the sum over, by name: interfaces, disks; of other kinds nothing.
pub fn summed<'a>(kind: Kind, only: &'a [String], text: &'a [u8]) -> Vec<&'a str> {
    let Ok(text) = std::str::from_utf8(text) else {
        return Vec::new();
    };
    match kind {
        Kind::Netdev => interfaces(text, only).map(|(name, _)| name).collect(),
        Kind::Diskstats => disks(text).map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or(MISSING)
}

fn scaled(text: &str, unit: i64) -> i64 {
    match number(text) {
        MISSING => MISSING,
        value => value.checked_mul(unit).unwrap_or(MISSING),
    }
}

/// The sum of two values; of one that is missing, or of numbers no counter has, nothing.
fn sum(first: i64, second: i64) -> i64 {
    match (first, second) {
        (MISSING, _) | (_, MISSING) => MISSING,
        _ => first.checked_add(second).unwrap_or(MISSING),
    }
}

fn add(total: &mut i64, text: Option<&str>, unit: i64) {
    *total = sum(*total, text.map_or(MISSING, |text| scaled(text, unit)));
}

/// Shared memory (tmpfs, memfd, System V) is kept from others as anonymous memory is, and guests' may be it; the kernel
/// counts it as cache.
fn keyed(text: &str, values: &mut [i64]) {
    let mut shared = MISSING;
    for (key, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some((_, slot, unit)) = KEYS.iter().find(|(known, ..)| *known == key) {
            values[*slot] = scaled(value, *unit);
        } else if SHARED_KEYS.contains(&key) {
            shared = number(value);
        }
    }
    values[3] = sum(values[3], shared);
    values[4] = match (values[4], shared) {
        (MISSING, _) | (_, MISSING) => MISSING,
        // The kernel does not sum both at one moment.
        (cache, shared) => cache.saturating_sub(shared).max(0),
    };
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`
fn psi(text: &str, values: &mut [i64]) {
    for line in text.lines() {
        let slot = usize::from(line.starts_with("full"));
        values[slot] = line
            .rsplit_once("total=")
            .map_or(MISSING, |(_, total)| number(total));
    }
}

/// user nice system idle iowait irq softirq steal, in ticks; guest time is part of user's.
fn stat(text: &str, values: &mut [i64]) {
    for line in text.lines() {
        if let Some(switches) = line.strip_prefix("ctxt ") {
            values[5] = number(switches);
        } else if let Some(times) = line.strip_prefix("cpu ") {
            let mut ticks = [MISSING; 8];
            for (slot, field) in ticks.iter_mut().zip(times.split_ascii_whitespace()) {
                *slot = scaled(field, TICK_NS);
            }
            let [user, nice, system, idle, iowait, irq, softirq, steal] = ticks;
            values[1] = sum(user, nice);
            values[2] = sum(sum(system, irq), softirq);
            values[0] = sum(values[1], values[2]);
            values[3] = sum(idle, iowait);
            values[4] = steal;
        }
    }
}

fn meminfo(text: &str, values: &mut [i64]) {
    for line in text.lines() {
        if let Some(slot) = MEMINFO_KEYS.iter().position(|key| line.starts_with(key)) {
            values[slot] = line
                .split_ascii_whitespace()
                .nth(1)
                .map_or(MISSING, |kib| scaled(kib, 1024));
        }
    }
}

/// The interfaces named, or all but the loopback: name and fields.
fn interfaces<'a>(
    text: &'a str,
    only: &'a [String],
) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, fields)| (name.trim_ascii_start(), fields))
        .filter(move |(name, _)| match only {
            [] => *name != "lo",
            _ => only.iter().any(|one| one == name),
        })
}

/// The sum over them; nothing where there is none.
fn netdev(text: &str, only: &[String], values: &mut [i64]) {
    for (at, (_, fields)) in interfaces(text, only).enumerate() {
        if at == 0 {
            values.fill(0);
        }
        for (position, field) in fields.split_ascii_whitespace().enumerate() {
            let slot = match position {
                0 => 0,
                1 => 1,
                8 => 2,
                9 => 3,
                _ => continue,
            };
            add(&mut values[slot], Some(field), 1);
        }
    }
}

/// Fields 14, 15 and 24 of /proc/PID/stat, counted from 1; field 2 may hold anything, even parentheses.
fn pidstat(text: &str, values: &mut [i64]) {
    let Some((_, rest)) = text.rsplit_once(") ") else {
        return;
    };
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = |skip, unit| {
        fields
            .nth(skip)
            .map_or(MISSING, |field| scaled(field, unit))
    };
    let (user, system, resident) = (next(0, TICK_NS), next(0, TICK_NS), next(8, PAGE_BYTES));
    if system != MISSING {
        values.copy_from_slice(&[sum(user, system), user, system, resident]);
    }
}

/// Whole disks, no partitions, no loop devices, no RAM disks: name and the fields behind it.
fn disks(text: &str) -> impl Iterator<Item = (&str, std::str::SplitAsciiWhitespace<'_>)> {
    let mut disk = "";
    text.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.nth(2).unwrap_or_default();
        let is_virtual = ["loop", "ram", "zram", "dm-", "md"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if is_virtual || is_partition(disk, name) {
            return None;
        }
        disk = name;
        Some((name, fields))
    })
}

/// The sum over them; nothing where there is none.
fn diskstats(text: &str, values: &mut [i64]) {
    for (at, (name, mut fields)) in disks(text).enumerate() {
        if at == 0 {
            values.fill(0);
        }
        if is_counted_elsewhere(text, name) {
            continue;
        }
        add(&mut values[0], fields.nth(2), SECTOR_BYTES);
        add(&mut values[1], fields.nth(3), SECTOR_BYTES);
    }
}

/// Whether it is a path (nvme0c1n1) of an NVMe disk that may have several, whose head (nvme0n1) counts the same bytes.
/// Before Linux 6.2 heads count none, and stand at 0.
fn is_counted_elsewhere(text: &str, name: &str) -> bool {
    let Some(head) = head_of(name) else {
        return false;
    };
    disks(text)
        .filter(|(other, _)| *other == head)
        .any(|(_, mut fields)| [fields.nth(2), fields.nth(3)] != [Some("0"), Some("0")])
}

/// The disk that an NVMe path is one of.
fn head_of(path: &str) -> Option<String> {
    let (subsystem, rest) = path.strip_prefix("nvme")?.split_once('c')?;
    let (_controller, namespace) = rest.split_once('n')?;
    Some(format!("nvme{subsystem}n{namespace}"))
}

/// sda1 of sda, nvme0n1p2 of nvme0n1, where nvme0n10 is another disk: behind a digit the kernel puts a p before the number
/// (`add_partition` of block/partitions/core.c). It lists partitions after their disk.
fn is_partition(disk: &str, name: &str) -> bool {
    let behind = match disk.ends_with(|last: char| last.is_ascii_digit()) {
        true => "p",
        false => "",
    };
    let number = name
        .strip_prefix(disk)
        .and_then(|rest| rest.strip_prefix(behind));
    !disk.is_empty()
        && number
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `8:0 Read 4096`, one line a device and direction, and a total (cgroup v1).
fn blkio(text: &str, values: &mut [i64]) {
    values.fill(0);
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let slot = match fields.next() {
            Some("Read") => 0,
            Some("Write") => 1,
            _ => continue,
        };
        add(&mut values[slot], fields.next(), 1);
    }
}

/// `8:0 rbytes=4096 wbytes=0 rios=1 ...`, one line a device (cgroup v2).
fn io_stat(text: &str, values: &mut [i64]) {
    values.fill(0);
    for (key, value) in text
        .split_ascii_whitespace()
        .filter_map(|field| field.split_once('='))
    {
        match key {
            "rbytes" => add(&mut values[0], Some(value), 1),
            "wbytes" => add(&mut values[1], Some(value), 1),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Kind; 11] = [
        Kind::Integer,
        Kind::Keyed,
        Kind::Psi,
        Kind::Stat,
        Kind::Meminfo,
        Kind::Netdev,
        Kind::Pidstat,
        Kind::Diskstats,
        Kind::Blkio,
        Kind::IoStat,
        Kind::Threads,
    ];

    fn of_bytes(kind: Kind, text: &[u8]) -> Vec<i64> {
        let mut values = vec![0; counters(kind).len()];
        parse(kind, &[], text, &mut values);
        values
    }

    /// Text that looks like the kernel's, with numbers that no counter has.
    fn likely() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("cpu".to_string()),
            Just("ctxt".to_string()),
            Just("eth0:".to_string()),
            Just("sda".to_string()),
            Just("some total=9223372036854775807".to_string()),
            Just("Read".to_string()),
            Just("rbytes=9223372036854775807".to_string()),
            Just("1 (x) R".to_string()),
            Just("usage_usec".to_string()),
            Just("MemTotal:".to_string()),
            Just("\n".to_string()),
            any::<i64>().prop_map(|number| number.to_string()),
            any::<u128>().prop_map(|number| number.to_string()),
        ];
        prop::collection::vec(word, 0..60).prop_map(|words| words.join(" "))
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_parser_panic(text in prop::collection::vec(any::<u8>(), 0..600)) {
            for kind in KINDS {
                of_bytes(kind, &text);
            }
        }

        #[test]
        fn no_numbers_make_a_parser_panic(text in likely()) {
            for kind in KINDS {
                of_bytes(kind, text.as_bytes());
            }
        }
    }

    #[test]
    fn what_is_too_large_or_not_there_is_missing() {
        let huge = i64::MAX.to_string();
        assert_eq!(
            of_bytes(Kind::Keyed, format!("usage_usec {huge}").as_bytes())[0],
            MISSING
        );
        assert_eq!(
            of_bytes(Kind::Stat, b"cpu 1 2 3\n")[..4],
            [MISSING, 30_000_000, MISSING, MISSING]
        );
        let twice = format!("8:0 Read {huge}\n8:1 Read {huge}\n8:0 Write 7\n");
        assert_eq!(of_bytes(Kind::Blkio, twice.as_bytes()), [MISSING, 7]);
        assert_eq!(of_bytes(Kind::Blkio, b"8:0 Read x\n"), [MISSING, 0]);
        assert_eq!(
            of_bytes(Kind::Netdev, b"eth0: 1 2\neth1: x 2\n")[..2],
            [MISSING, 4]
        );
    }

    fn parsed(kind: Kind, text: &str) -> Vec<i64> {
        let mut values = [0; MOST_COUNTERS];
        let values = &mut values[..counters(kind).len()];
        parse(kind, &[], text.as_bytes(), values);
        values.to_vec()
    }

    #[test]
    fn integers() {
        assert_eq!(parsed(Kind::Integer, "123\n"), [123]);
        assert_eq!(parsed(Kind::Integer, "max\n"), [MISSING]);
        assert_eq!(parsed(Kind::Integer, ""), [MISSING]);
    }

    #[test]
    fn keyed_files_of_both_cgroup_generations() {
        let v2_cpu = "usage_usec 12\nuser_usec 7\nsystem_usec 5\nnr_periods 0\n";
        assert_eq!(
            parsed(Kind::Keyed, v2_cpu),
            [12_000, 7_000, 5_000, MISSING, MISSING]
        );
        let v2_memory = "anon 4096\nfile 8192\nkernel 1\nshmem 1024\nfile_mapped 5\n";
        assert_eq!(parsed(Kind::Keyed, v2_memory)[3..], [5120, 7168]);
        let v1_memory = "cache 1\nrss 2\nshmem 3\ntotal_cache 8192\ntotal_rss 4096\ntotal_rss_huge 3\ntotal_shmem 1024\n";
        assert_eq!(parsed(Kind::Keyed, v1_memory)[3..], [5120, 7168]);
    }

    #[test]
    fn shared_memory_is_resident_and_no_cache() {
        let all_shared = "anon 0\nfile 4096\nshmem 8192\n"; // not summed at one moment
        assert_eq!(parsed(Kind::Keyed, all_shared)[3..], [8192, 0]);
        for untold in ["anon 4096\nfile 8192\n", "anon 4096\nfile 8192\nshmem x\n"] {
            assert_eq!(parsed(Kind::Keyed, untold)[3..], [MISSING, MISSING]);
        }
        assert_eq!(parsed(Kind::Keyed, "file 2\nshmem 1\n")[3..], [MISSING, 1]);
        let huge = format!("anon {0}\nfile 1\nshmem {0}\n", i64::MAX);
        assert_eq!(parsed(Kind::Keyed, &huge)[3..], [MISSING, 0]);
    }

    #[test]
    fn pressure() {
        let text = "some avg10=0.00 avg60=0.12 avg300=0.00 total=987\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n";
        assert_eq!(parsed(Kind::Psi, text), [987, 12]);
        assert_eq!(
            parsed(
                Kind::Psi,
                "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"
            ),
            [5, MISSING]
        );
    }

    #[test]
    fn system_times() {
        let text = "cpu  10 1 20 300 4 5 6 7 8 0\ncpu0 10 1 20 300 4 5 6 7 8 0\nintr 9 9\nctxt 4242\nbtime 1\n";
        let ns = |ticks: i64| ticks * TICK_NS;
        assert_eq!(
            parsed(Kind::Stat, text),
            [ns(42), ns(11), ns(31), ns(304), ns(7), 4242]
        );
    }

    #[test]
    fn memory() {
        let text = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 500 kB\nCached: 70 kB\nSwapCached: 9 kB\nAnonPages: 30 kB\n";
        assert_eq!(
            parsed(Kind::Meminfo, text),
            [1000 * 1024, 500 * 1024, 30 * 1024, 70 * 1024]
        );
    }

    #[test]
    fn networks_are_summed_without_the_loopback() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs\n\
            lo: 99 9 0 0 0 0 0 0 99 9 0 0 0 0 0 0\n  eth0: 100 2 0 0 0 0 0 0 300 4 0 0 0 0 0 0\n  eth1:1 1 0 0 0 0 0 0 2 2 0 0 0 0 0 0\n";
        assert_eq!(parsed(Kind::Netdev, text), [101, 3, 302, 6]);
        let mut values = [0; 4];
        parse(Kind::Netdev, &["eth1".into()], text.as_bytes(), &mut values);
        assert_eq!(values, [1, 1, 2, 2]);
    }

    #[test]
    fn where_nothing_is_summed_there_is_no_sum() {
        let text = "    lo: 99 9 0 0 0 0 0 0 99 9 0 0 0 0 0 0\n";
        assert_eq!(parsed(Kind::Netdev, text), [MISSING; 4]);
        let mut values = [0; 4];
        parse(Kind::Netdev, &["eth1".into()], text.as_bytes(), &mut values);
        assert_eq!(values, [MISSING; 4]);
        let loops = "   7 0 loop0 9 9 999 9 9 9 999 9 0 0 0\n";
        assert_eq!(parsed(Kind::Diskstats, loops), [MISSING; 2]);
        assert_eq!(parsed(Kind::Diskstats, ""), [MISSING; 2]);
    }

    #[test]
    fn what_is_summed_has_names() {
        let text = b"Inter-|\n lo: 1\n  eth0: 1\n eth1:1\n";
        assert_eq!(summed(Kind::Netdev, &[], text), ["eth0", "eth1"]);
        let only = ["eth1".to_owned(), "org0".to_owned()];
        assert_eq!(summed(Kind::Netdev, &only, text), ["eth1"]);
        let text = b" 8 0 sda 1\n 8 1 sda1 1\n 7 0 loop0 9\n";
        assert_eq!(summed(Kind::Diskstats, &[], text), ["sda"]);
        assert_eq!(summed(Kind::Stat, &[], text), [""; 0]);
    }

    #[test]
    fn one_process() {
        let text = "7 (odd) name) S 1 7 7 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 1 0 55 1000000 25 18446744073709551615 1\n";
        assert_eq!(
            parsed(Kind::Pidstat, text),
            [46 * TICK_NS, 12 * TICK_NS, 34 * TICK_NS, 25 * 4096]
        );
        assert_eq!(parsed(Kind::Pidstat, ""), [MISSING; 4]);
    }

    #[test]
    fn disks_without_their_partitions() {
        let text = "   7 0 loop0 9 9 999 9 9 9 999 9 0 0 0\n   8 0 sda 1 0 10 0 1 0 20 0 0 0 0\n   8 1 sda1 1 0 10 0 1 0 20 0 0 0 0\n \
            259 0 nvme0n1 1 0 1 0 1 0 2 0 0 0 0\n 259 1 nvme0n1p1 1 0 1 0 1 0 2 0 0 0 0\n   8 0 sdaa 1 0 100 0 1 0 200 0 0 0 0\n";
        assert_eq!(parsed(Kind::Diskstats, text), [111 * 512, 222 * 512]);
        let tenth = "259 0 nvme0n1 1 0 1 0 1 0 2 0\n259 1 nvme0n1p1 1 0 1 0 1 0 2 0\n259 2 nvme0n10 1 0 10 0 1 0 20 0\n";
        assert_eq!(parsed(Kind::Diskstats, tenth), [11 * 512, 22 * 512]);
    }

    #[test]
    fn an_nvme_disk_with_paths_is_counted_once() {
        let paths =
            "   0 0 nvme0c0n1 1 0 10 0 1 0 20 0 0 0 0\n   0 1 nvme0c1n1 1 0 1 0 1 0 2 0 0 0 0\n";
        let head = |read, written| {
            format!("{paths} 259 2 nvme0n1 2 0 {read} 0 2 0 {written} 0 0 0 0\n 259 3 nvme0n1p1 2 0 11 0 2 0 22 0 0 0 0\n")
        };
        let both = [11 * 512, 22 * 512];
        assert_eq!(parsed(Kind::Diskstats, &head(11, 22)), both);
        assert_eq!(parsed(Kind::Diskstats, &head(0, 0)), both, "before 6.2");
        assert_eq!(parsed(Kind::Diskstats, paths), both, "without its head");
        let all = ["nvme0c0n1", "nvme0c1n1", "nvme0n1"];
        assert_eq!(summed(Kind::Diskstats, &[], head(0, 0).as_bytes()), all);
    }

    #[test]
    fn block_io_of_both_cgroup_generations() {
        let v1 = "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 1\n8:0 Total 12288\n8:16 Read 1\n8:16 Write 2\nTotal 12291\n";
        assert_eq!(parsed(Kind::Blkio, v1), [4097, 8194]);
        let v2 = "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2 rios=1 wios=1\n";
        assert_eq!(parsed(Kind::IoStat, v2), [4097, 8194]);
        assert_eq!(parsed(Kind::IoStat, ""), [0, 0]); // no I/O yet
    }
}
