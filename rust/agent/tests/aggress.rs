//! Each aggressor does harm of its kind, within its caps, and nothing of it is left, however it ends.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Only against hanging. On a busy machine it may be minutes until a process can begin, or end.
const PATIENCE: Duration = Duration::from_secs(900);
/// Longer than any wait: who is told to end must not have ended in its time.
const FOR_LONG: &str = "86400000000000";
const NAMES: [&str; 9] = [
    "cache",
    "cpu",
    "disk",
    "fork",
    "memory",
    "net-receive",
    "net-send",
    "polite",
    "timer",
];

fn command(name: &str, duration_ns: &str, caps: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtoll-agent"));
    command
        .args(["aggress", name, "--duration-ns", duration_ns])
        .args(["--series-ns", "10000000"])
        .args(caps.split_ascii_whitespace());
    command
}

fn output(name: &str, duration_ns: &str, caps: &str) -> Output {
    command(name, duration_ns, caps).output().unwrap()
}

/// Small caps for each, so that it is no bomb where nothing limits this test.
fn small_caps(name: &str) -> String {
    match name {
        "cache" => "--threads 2 --block-bytes 65536".into(),
        "cpu" => "--threads 2".into(),
        "disk" => "--most-bytes 2097152".into(),
        "fork" => "--most-processes 12".into(),
        "memory" => "--most-bytes 4194304".into(),
        "net-receive" => format!("--port {}", free_port()),
        "net-send" => format!("--peer {NOBODY} --rate-bit-per-s 1000000"),
        "polite" => String::new(),
        _ => "--threads 2".into(),
    }
}

/// Where nobody listens, and nobody who is given any free port ever will (RFC 863).
const NOBODY: &str = "127.0.0.1:9";

/// A port that is free, and that nobody is given who asks for any: below those that Linux gives away. It is not tried:
/// a process that another test is about to begin would have that socket too, until it runs its program.
fn free_port() -> u16 {
    let table = fs::read_to_string("/proc/net/udp").unwrap();
    let taken: Vec<u16> = table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.rsplit_once(':'))
        .map(|(_, port)| u16::from_str_radix(port, 16).unwrap())
        .collect();
    loop {
        let random = RandomState::new().build_hasher().finish();
        let port = 10_000 + (random % 20_000) as u16;
        if !taken.contains(&port) {
            return port;
        }
    }
}

/// A running aggressor.
struct Running {
    supervisor: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(name: &str, caps: &str) -> Running {
        let mut supervisor = command(name, FOR_LONG, caps)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(supervisor.stdout.take().unwrap());
        Running { supervisor, lines }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"))
    }

    /// Read on until a line is as wanted.
    fn await_line(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = self.line();
            if is_wanted(&line) {
                return line;
            }
            assert!(Instant::now() < deadline, "{what} never came: {line}");
        }
    }

    fn await_count(&mut self, name: &str, least: u64) -> Value {
        self.await_line(name, |line| line["counts"][name].as_u64() >= Some(least))
    }

    /// The group's first process.
    fn leader(&self) -> i32 {
        let pid = self.supervisor.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let first = children.split_ascii_whitespace().next();
        first.unwrap_or_else(|| self.childless()).parse().unwrap()
    }

    /// Say whether the supervisor itself has ended, or has just seen its group end.
    fn childless(&self) -> ! {
        let file = format!("/proc/{}/status", self.supervisor.id());
        let status = fs::read_to_string(file).unwrap_or_default();
        let state = status.lines().find(|line| line.starts_with("State:"));
        panic!("no first process; the supervisor: {state:?}");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved; the process is ours and was not waited for yet.
        unsafe { libc::kill(self.supervisor.id() as i32, signal) };
    }

    /// Tell it to end; its report.
    fn told_to_end(mut self) -> Value {
        self.signal(libc::SIGTERM);
        let report = self.await_line("a report", |line| !line["aggressor"].is_null());
        assert!(self.supervisor.wait().unwrap().success());
        report
    }
}

/// What a test that fails leaves would go on for long; the group ends with its supervisor.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

/// The processes of a group that have not ended.
fn members(group: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = fields.split_ascii_whitespace();
        let (state, of) = (fields.next(), fields.nth(1));
        state != Some("Z") && of.is_some_and(|of| of.parse() == Ok(group))
    })
    .collect()
}

fn assert_gone(group: i32) {
    let deadline = Instant::now() + PATIENCE;
    while !members(group).is_empty() {
        assert!(Instant::now() < deadline, "left: {:?}", members(group));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A number in a file of /proc/PID, by the word before it.
fn told(pid: i32, file: &str, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_ascii_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

fn report(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn each_ends_in_its_time_with_a_report() {
    for name in NAMES {
        let output = output(name, "30000000", &small_caps(name));
        assert!(output.status.success(), "{name}: {output:?}");
        let report = report(&output);
        assert_eq!(report["aggressor"], name);
        assert_eq!(report["ended"], "time", "{report}");
        assert_eq!(report["refused"], Value::Null);
        assert!(report["end_ns"].as_u64() >= report["start_ns"].as_u64());
    }
}

#[test]
fn nothing_is_left_when_it_is_told_to_end() {
    for name in NAMES {
        let mut running = Running::start(name, &small_caps(name));
        running.line();
        let group = running.leader();
        assert!(!members(group).is_empty(), "{name}");
        assert_eq!(running.told_to_end()["ended"], "told");
        assert!(members(group).is_empty(), "{name}");
    }
}

#[test]
fn nothing_is_left_when_its_supervisor_is_killed() {
    for name in NAMES {
        let mut running = Running::start(name, &small_caps(name));
        running.line();
        let group = running.leader();
        running.signal(libc::SIGKILL);
        running.supervisor.wait().unwrap();
        assert_gone(group);
    }
}

#[test]
fn a_grown_fork_bomb_does_not_outlive_its_supervisor() {
    let mut running = Running::start("fork", "--most-processes 40");
    running.await_count("forks", 39);
    let group = running.leader();
    assert_eq!(members(group).len(), 40);
    running.signal(libc::SIGKILL);
    running.supervisor.wait().unwrap();
    assert_gone(group);
}

#[test]
fn one_that_is_killed_begins_again_and_the_old_group_is_gone() {
    for name in ["fork", "memory"] {
        let mut running = Running::start(name, &small_caps(name));
        running.line();
        let first = running.leader();
        // SAFETY: no memory is involved; the process is a child of one of ours that waits for it.
        unsafe { libc::kill(first, libc::SIGKILL) };
        running.await_line("a restart", |line| line["restarts"] == 1);
        running.await_line("a process", |line| line["processes"].as_u64() >= Some(1));
        assert!(members(first).is_empty());
        assert_ne!(running.leader(), first);
        assert_eq!(running.told_to_end()["killed_by"], serde_json::json!([9]));
    }
}

#[test]
fn the_fork_bomb_fills_its_cap_and_counts_rightly() {
    let mut running = Running::start("fork", "--most-processes 25");
    // All of them counted: one counts its child before it counts its fork.
    let full =
        |line: &Value, forks: u64| line["processes"] == 25 && line["counts"]["forks"] == forks;
    running.await_line("25 processes", |line| full(line, 24));
    let group = running.leader();
    let alive = members(group);
    assert_eq!(alive.len(), 25);
    let victim = *alive.iter().find(|pid| **pid != group).unwrap();
    // SAFETY: as above; its parent reaps it, or the supervisor.
    unsafe { libc::kill(victim, libc::SIGKILL) };
    running.await_line("another in its place", |line| full(line, 25));
    assert_eq!(members(group).len(), 25);
    assert_eq!(running.told_to_end()["processes_peak"], 25);
}

#[test]
fn the_memory_bomb_holds_what_it_says() {
    let mut running = Running::start("memory", "--most-bytes 33554432");
    let line = running.await_count("touched_bytes", 64 << 20); // it goes on when it is full
    assert_eq!(line["counts"]["held_bytes"], 32 << 20);
    assert!(told(running.leader(), "status", "VmRSS:") * 1024 >= 32 << 20);
    let adjustment = fs::read_to_string(format!("/proc/{}/oom_score_adj", running.leader()));
    assert_eq!(adjustment.unwrap(), "1000\n");
    running.told_to_end();
}

#[test]
fn the_hog_takes_cpu_time_and_the_polite_one_its_share() {
    let mut running = Running::start("cpu", "--threads 2");
    let line = running.await_count("cpu_ns", 200_000_000);
    assert_eq!(told(running.leader(), "status", "Threads:"), 2);
    assert_eq!(line["counts"]["refused"], 0);
    running.told_to_end();
    let mut running = Running::start("polite", "--share-percent 5"); // of a CPU as fast as its fastest moment
    running.await_count("periods", 20);
    // What the machine's own host took from a CPU is booked to who was on it, in the few first periods too.
    running.await_line("less than half of a CPU", |line| {
        let counted = |name: &str| line["counts"][name].as_f64().unwrap();
        counted("used_ns") < 0.5 * counted("periods") * 10e6
    });
    running.told_to_end();
}

#[test]
fn the_storms_write_and_leave_no_file() {
    for kind in ["fsync", "sequential", "both"] {
        let directory = Scratch::new(kind);
        let caps = format!("--kind {kind} --most-bytes 4194304 --directory {directory}");
        let mut running = Running::start("disk", &caps);
        running.await_count("syncs", 3);
        let line = running.await_count("written_bytes", 3 * 4096);
        let written = told(running.leader(), "io", "wchar:");
        assert!(written >= line["counts"]["written_bytes"].as_u64().unwrap());
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
        running.signal(libc::SIGKILL);
        running.supervisor.wait().unwrap();
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
    }
}

#[test]
fn the_timers_wake_threads() {
    let mut running = Running::start("timer", "--threads 4 --interval-ns 20000");
    let line = running.await_count("wakeups", 1000);
    let leader = running.leader();
    let tasks = fs::read_dir(format!("/proc/{leader}/task"))
        .unwrap()
        .flatten();
    let switches: u64 = tasks
        .filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok())
        .map(|task| {
            let file = format!("task/{task}/status");
            // One that is held up just before it would have slept counts as not voluntary.
            ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]
                .map(|kind| told(leader, &file, kind))
                .iter()
                .sum::<u64>()
        })
        .sum();
    assert!(switches >= line["counts"]["wakeups"].as_u64().unwrap() / 2);
    running.told_to_end();
}

#[test]
fn the_thrash_sweeps_over_all_its_memory() {
    let mut running = Running::start("cache", "--threads 2 --block-bytes 8388608");
    running.await_count("sweeps", 4);
    let leader = running.leader();
    // The four may all be of one thread: the other comes when it gets a CPU.
    running.await_line("all memory", |_| {
        told(leader, "status", "VmRSS:") * 1024 >= 2 * 8_388_608
    });
    running.told_to_end();
}

#[test]
fn the_flood_arrives() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    let mut running = Running::start("net-send", &format!("--peer {address} --size-bytes 300"));
    let mut bytes = [0; 400];
    assert_eq!(socket.recv(&mut bytes).unwrap(), 300);
    running.await_count("packets", 1000);
    let report = running.told_to_end();
    assert_counted(&report["counts"], "sent_bytes", 300);
}

/// Datagrams and their bytes agree, but for one call's: it may be killed between counting the two.
fn assert_counted(counts: &Value, key: &str, size_bytes: u64) {
    let bytes = counts[key].as_u64().unwrap();
    let packets = counts["packets"].as_u64().unwrap();
    assert_eq!(bytes % size_bytes, 0, "{counts}");
    let uncounted = packets - bytes / size_bytes;
    assert!(uncounted <= 64, "{counts}");
}

#[test]
fn what_comes_is_counted() {
    let port = free_port();
    let mut running = Running::start("net-receive", &format!("--port {port}"));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while running.line()["counts"]["packets"] == 0 {
        socket.send_to(&[1; 200], ("127.0.0.1", port)).unwrap();
        assert!(Instant::now() < deadline);
    }
    let report = running.told_to_end();
    assert_counted(&report["counts"], "received_bytes", 200);
}

#[test]
fn one_that_fails_by_itself_is_refused_and_does_not_begin_again() {
    for signal in [libc::SIGABRT, libc::SIGILL] {
        let mut running = Running::start("cpu", "--threads 2");
        running.line();
        // SAFETY: no memory is involved; the process is a child of one of ours that waits for it.
        unsafe { libc::kill(running.leader(), signal) };
        let report = running.await_line("a report", |line| !line["aggressor"].is_null());
        assert_eq!(report["ended"], "refused", "{report}");
        assert_eq!(report["restarts"], 0);
        let why = report["refused"].as_str().unwrap();
        assert!(why.contains(&format!("signal {signal}")), "{why}");
        assert!(running.supervisor.wait().unwrap().success());
    }
}

#[test]
fn a_panic_and_a_want_of_memory_are_told_and_no_kill_from_outside() {
    for (held_bytes, expected) in [
        (u64::MAX, "capacity overflow"),
        (1 << 60, "no memory for what it needs"),
    ] {
        let caps = format!("--held-bytes {held_bytes}");
        let report = report(&output("polite", FOR_LONG, &caps));
        assert_eq!(report["ended"], "refused", "{report}");
        let why = report["refused"].as_str().unwrap();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    let taken = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (name, caps, expected) in [
        (
            "disk",
            "--directory /nowhere".to_owned(),
            "/nowhere: No such file",
        ),
        ("net-receive", format!("--port {port}"), "in use"),
        (
            "cache",
            "--threads 1 --block-bytes 9000000000000000000".to_owned(),
            "Cannot allocate",
        ),
    ] {
        let report = report(&output(name, FOR_LONG, &caps));
        assert_eq!(report["ended"], "refused", "{report}");
        let why = report["refused"].as_str().unwrap();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn it_ends_in_its_time_though_nobody_reads() {
    let mut supervisor = command("polite", "500000000", "")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = supervisor.stdout.take().unwrap();
    // SAFETY: sets the size of a pipe that we hold, to the least: less than its lines take.
    unsafe {
        libc::fcntl(
            std::os::fd::AsRawFd::as_raw_fd(&output),
            libc::F_SETPIPE_SZ,
            4096,
        )
    };
    std::thread::sleep(Duration::from_millis(600));
    let lines: Vec<String> = BufReader::new(output).lines().map(Result::unwrap).collect();
    let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(last["ended"], "time");
    assert!(supervisor.wait().unwrap().success());
}

#[test]
fn wrong_arguments_are_told() {
    for (name, caps, expected) in [
        ("bomb", "", "no aggressor is called"),
        ("cpu", "--most-bytes 1", "there is no --most-bytes"),
        ("fork", "--most-processes 1", "is below 2"),
        ("disk", "--kind slow", "none of both, fsync, sequential"),
        ("net-send", "", "--peer"),
        ("net-send", "--peer here", "no ADDRESS:PORT"),
        ("net-receive", "--port 70000", "is no port"),
        ("polite", "--share-percent 101", "above 100"),
        ("timer", "--interval-ns 1000000000", "not below a second"),
    ] {
        let output = output(name, "1000000", caps);
        assert_eq!(output.status.code(), Some(2), "{name}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(expected), "{said}");
    }
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let random = RandomState::new().build_hasher().finish();
        let path = std::env::temp_dir().join(format!("virtoll-{name}-{random:016x}"));
        fs::create_dir(&path).unwrap();
        Scratch(path)
    }
}

impl std::fmt::Display for Scratch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(formatter)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
