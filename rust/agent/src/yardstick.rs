//! A yardstick: how long the same small piece of work takes on a CPU, time and again, while others compute there. It tells
//! how fast the CPU is just then, whoever makes it slow.
//!
//! The work is a system call that does nothing, many times: all of it fits the core's own caches, and it is done right
//! before it is timed, too. So what was computed there a moment ago hardly moves it, and a neighbour on the other thread of
//! the core, whom nobody here sees, does. Whether what is ours moves it is tried (`try`) before it is relied upon.
//!
//! It is told what to do on stdin, a line each, and answers with a line each:
//!
//! `begin CPU,CPU`        -> `begun`: from now on each of these CPUs is read, every 4 ms or so
//! `end FROM_NS TO_NS`    -> `READINGS TIME_NS`: of those that lie within, the mean over CPUs; `0 0` where they are too few
//! `try CPU,CPU CPU,CPU N` -> `OWN OTHERS`, N of them: by how much the logarithm of the time changes where the first CPUs
//!                          idle now and then, as beside a service, and where the others are idle, against all at work

use std::hint::black_box;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use virtoll_probe::windows::clock_ns;
use virtoll_probe::{sleep_until, SplitMix64};

// From 2 to 6 ms, drawn anew each time: out of step with ticks, and with loads that ask by the clock. Each reading takes the CPU
// from whoever computes there, which costs a virtual machine more than a process: 250 a second, of some 6 us.
const LEAST_INTERVAL_NS: u64 = 2_000_000;
const MOST_INTERVAL_NS: u64 = 6_000_000;
const CALLS: usize = 30;
const LEAST_READINGS: usize = 5; // on each CPU
const MOST_READINGS: usize = 1 << 20;
const TRIED_EVERY_NS: u64 = 2_000_000;
const TRIED_READINGS: u64 = 25;
const SETTLES: Duration = Duration::from_millis(10);
const MOST_TRIES: usize = 10_000;
const BUFFER_BYTES: usize = 256 * 1024;
const WORKS_NS: u64 = 400_000; // and then idles: a server that has most of a CPU waits so often, and so long
const IDLES: Duration = Duration::from_micros(50);
const IDLES_LONG: Duration = Duration::from_millis(5);

/// When a reading was begun, and how long it took (ns).
type Reading = (u64, u64);

/// Obey stdin until it ends. Exit 2 where a line is none of those above.
pub fn main() -> ExitCode {
    let mut yardstick = Yardstick::default();
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(answer) = yardstick.obey(&words) else {
            eprintln!("virtoll-agent yardstick: not understood: {line}");
            return ExitCode::from(2);
        };
        let mut out = io::stdout().lock();
        if writeln!(out, "{answer}")
            .and_then(|()| out.flush())
            .is_err()
        {
            break;
        }
    }
    ExitCode::SUCCESS
}

#[derive(Default)]
struct Yardstick {
    readers: Vec<Arc<Reader>>,
}

impl Yardstick {
    fn obey(&mut self, words: &[&str]) -> Option<String> {
        match words {
            ["begin", cpus] => {
                self.end();
                for cpu in listed(cpus)? {
                    self.readers.push(Reader::started(cpu)?);
                }
                Some("begun".into())
            }
            ["end", from, to] => {
                let (from, to) = (from.parse().ok()?, to.parse().ok()?);
                let (count, time_ns) = self.within(from, to).unwrap_or((0, 0.0));
                self.end();
                Some(format!("{count} {time_ns:.3}"))
            }
            ["try", cpus, others, count] => {
                self.end();
                let count = count
                    .parse()
                    .ok()
                    .filter(|count| (1..=MOST_TRIES).contains(count))?;
                let tries = tried(&listed(cpus)?, &listed(others)?, count)?;
                let lines: Vec<String> = tries
                    .iter()
                    .map(|(own, others)| format!("{own:.6} {others:.6}"))
                    .collect();
                Some(lines.join("\n"))
            }
            _ => None,
        }
    }

    /// Nobody waits for the readers: each ends with the reading that it is about to take.
    fn end(&mut self) {
        for reader in self.readers.drain(..) {
            reader.over.store(true, Ordering::Relaxed);
        }
    }

    /// How many readings lie within on all CPUs, and their time; None where a CPU has too few.
    fn within(&self, from_ns: u64, to_ns: u64) -> Option<(usize, f64)> {
        let (mut count, mut logs) = (0, 0.0);
        for reader in &self.readers {
            let readings = reader.readings.lock().ok()?;
            let times: Vec<u64> = readings
                .iter()
                .filter(|(at, took)| from_ns <= *at && at + took <= to_ns)
                .map(|(_, took)| *took)
                .collect();
            if times.len() < LEAST_READINGS {
                return None;
            }
            count += times.len();
            logs += typical_log(times);
        }
        match self.readers.len() {
            0 => None,
            cpus => Some((count, (logs / cpus as f64).exp())),
        }
    }
}

/// The mean logarithm of those that are neither among the fifth that is least nor that which is most: an interrupt in the
/// middle of one is work of the very load that is measured, and none of the CPU's.
fn typical_log(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let beyond = times.len() / 5;
    let kept = &times[beyond..times.len() - beyond];
    kept.iter().map(|time| (*time as f64).ln()).sum::<f64>() / kept.len() as f64
}

#[derive(Default)]
struct Reader {
    over: AtomicBool,
    readings: Mutex<Vec<Reading>>,
}

impl Reader {
    fn started(cpu: usize) -> Option<Arc<Reader>> {
        let reader = Arc::new(Reader::default());
        let mine = Arc::clone(&reader);
        let read_on = move || {
            // Where it may not be there it reads nothing, and too few readings are told as none.
            if is_kept_to(cpu) {
                mine.read_on(cpu);
            }
        };
        thread::Builder::new().spawn(read_on).ok().map(|_| reader)
    }

    fn read_on(&self, cpu: usize) {
        comes_first();
        let mut random = SplitMix64(now_ns());
        while !self.over.load(Ordering::Relaxed) {
            let within = MOST_INTERVAL_NS - LEAST_INTERVAL_NS;
            sleep_until(now_ns() + LEAST_INTERVAL_NS + random.drawn() % within);
            let reading = reading();
            if !is_on(cpu) {
                continue; // it was taken offline, say, and its threads are elsewhere
            }
            let Ok(mut readings) = self.readings.lock() else {
                return;
            };
            if readings.len() == MOST_READINGS {
                return;
            }
            readings.push(reading);
        }
    }
}

fn reading() -> Reading {
    work();
    let begun_ns = now_ns();
    work();
    (begun_ns, now_ns() - begun_ns)
}

fn work() {
    for _ in 0..CALLS {
        // SAFETY: reads nothing and always succeeds.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
    }
}

/// Some readings in each of three states by turns, whose order is drawn anew; by how much two differ from the first.
fn tried(cpus: &[usize], others: &[usize], count: usize) -> Option<Vec<(f64, f64)>> {
    let state = Arc::new(State::default());
    let there = all_at_work(&state, cpus, others);
    let (cpus, trying) = (cpus.to_vec(), Arc::clone(&state));
    let tries: Option<Option<Vec<_>>> = thread::Builder::new()
        .spawn(move || {
            comes_first();
            let mut random = SplitMix64(now_ns());
            (0..count)
                .map(|at| trying.one(cpus[at % cpus.len()], &mut random))
                .collect()
        })
        .ok()?
        .join()
        .ok();
    state.over.store(true, Ordering::Relaxed);
    tries?.filter(|_| there)
}

/// Begin the work on each CPU; whether all of it is done where it should be.
fn all_at_work(state: &Arc<State>, cpus: &[usize], others: &[usize]) -> bool {
    let (tell, told) = channel();
    let mut count = 0;
    for (whose, where_) in [(OWN_IDLE, cpus), (OTHERS_IDLE, others)] {
        for cpu in where_ {
            let (state, tell, cpu) = (Arc::clone(state), tell.clone(), *cpu);
            let work = move || state.work_on(whose, cpu, &tell);
            count += usize::from(thread::Builder::new().spawn(work).is_ok());
        }
    }
    drop(tell);
    let begun = told.iter().take(count).filter(|begun| *begun).count();
    begun == cpus.len() + others.len()
}

const AT_WORK: usize = 0;
const OWN_IDLE: usize = 1; // now and then
const OTHERS_IDLE: usize = 2; // all the time

#[derive(Default)]
struct State {
    over: AtomicBool,
    now: AtomicUsize,
}

impl State {
    /// Work as a server's: through the kernel, and through memory. In a state that is ``whose`` it idles.
    fn work_on(&self, whose: usize, cpu: usize, tell: &Sender<bool>) {
        let (true, Ok((mut near, mut far))) = (is_kept_to(cpu), UnixStream::pair()) else {
            let _ = tell.send(false);
            return;
        };
        let _ = tell.send(true);
        let (mut buffer, mut piece) = (vec![1_u8; BUFFER_BYTES], [0_u8; 4096]);
        let mut rests_ns = now_ns() + WORKS_NS;
        while !self.over.load(Ordering::Relaxed) {
            let rests = self.now.load(Ordering::Relaxed) == whose;
            if rests && (whose == OTHERS_IDLE || now_ns() >= rests_ns) {
                thread::sleep(if whose == OTHERS_IDLE {
                    IDLES_LONG
                } else {
                    IDLES
                });
                rests_ns = now_ns() + WORKS_NS;
                continue;
            }
            for byte in buffer.iter_mut().step_by(64) {
                *byte = byte.wrapping_add(1);
            }
            if near
                .write_all(&piece)
                .and_then(|()| far.read_exact(&mut piece))
                .is_err()
            {
                return;
            }
        }
    }

    fn one(&self, cpu: usize, random: &mut SplitMix64) -> Option<(f64, f64)> {
        if !is_kept_to(cpu) {
            return None;
        }
        let mut order = [AT_WORK, OWN_IDLE, OTHERS_IDLE];
        for last in [2, 1] {
            order.swap(last, (random.drawn() % (last as u64 + 1)) as usize);
        }
        let mut logs = [0.0; 3];
        for state in order {
            self.now.store(state, Ordering::Relaxed);
            thread::sleep(SETTLES);
            let begun_ns = now_ns();
            let times = (1..=TRIED_READINGS).map(|at| {
                sleep_until(begun_ns + at * TRIED_EVERY_NS);
                reading().1
            });
            logs[state] = typical_log(times.collect());
        }
        Some((
            logs[OWN_IDLE] - logs[AT_WORK],
            logs[OTHERS_IDLE] - logs[AT_WORK],
        ))
    }
}

/// CPUs of a list: `0,3`. None where it holds none, or anything else.
fn listed(text: &str) -> Option<Vec<usize>> {
    let most = libc::CPU_SETSIZE as usize;
    text.split(',')
        .map(|cpu| cpu.parse().ok().filter(|cpu| *cpu < most))
        .collect()
}

/// Whether this thread is on that CPU from now on.
fn is_kept_to(cpu: usize) -> bool {
    // SAFETY: a set is plain bytes; the number is below its size, as `listed` saw to.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &set) == 0
    }
}

fn is_on(cpu: usize) -> bool {
    // SAFETY: reads nothing.
    usize::try_from(unsafe { libc::sched_getcpu() }) == Ok(cpu)
}

/// Ahead of whatever computes on its CPU, where that is allowed; else it waits for its turn, and reads then.
fn comes_first() {
    // SAFETY: of this thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as libc::id_t, -20) };
}

fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(readings: &[&[Reading]]) -> Yardstick {
        let reader = |readings: &&[Reading]| {
            Arc::new(Reader {
                over: AtomicBool::new(false),
                readings: Mutex::new(readings.to_vec()),
            })
        };
        Yardstick {
            readers: readings.iter().map(reader).collect(),
        }
    }

    fn every_10(times: &[u64]) -> Vec<Reading> {
        let at = |(number, time): (usize, &u64)| (10_000 * (number as u64 + 1), *time);
        times.iter().enumerate().map(at).collect()
    }

    #[test]
    fn a_fifth_at_either_end_does_not_count() {
        let log = typical_log(vec![100, 5, 100, 900_000, 100]);
        assert!((log - 100_f64.ln()).abs() < 1e-9);
    }

    #[test]
    fn what_does_not_lie_within_does_not_count() {
        let readings = every_10(&[900, 100, 100, 100, 100, 100, 900]);
        let yardstick = of(&[&readings]);
        let (count, time_ns) = yardstick.within(20_000, 70_500).unwrap();
        assert_eq!(count, 5); // the first began before, the last ended after
        assert!((time_ns - 100.0).abs() < 1e-6);
    }

    #[test]
    fn cpus_count_alike() {
        let (slow, fast) = (every_10(&[400; 5]), every_10(&[100; 20]));
        let (_, time_ns) = of(&[&slow, &fast]).within(0, u64::MAX).unwrap();
        assert!((time_ns - 200.0).abs() < 1e-6);
    }

    #[test]
    fn too_few_on_one_cpu_are_none_of_all() {
        let (few, many) = (every_10(&[100; 4]), every_10(&[100; 20]));
        assert_eq!(of(&[&few, &many]).within(0, u64::MAX), None);
        assert_eq!(of(&[]).within(0, u64::MAX), None);
    }

    /// One that this process may use.
    fn a_cpu() -> String {
        let may_be = |cpu: &usize| {
            let cpu = *cpu;
            thread::spawn(move || is_kept_to(cpu)).join().unwrap()
        };
        (0..libc::CPU_SETSIZE as usize)
            .find(may_be)
            .unwrap()
            .to_string()
    }

    #[test]
    fn it_reads_until_it_is_told_to_end() {
        let mut yardstick = Yardstick::default();
        let cpu = a_cpu();
        assert_eq!(yardstick.obey(&["begin", &cpu]).unwrap(), "begun");
        for _ in 0..60_000 {
            if yardstick.within(0, u64::MAX).is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let told = yardstick
            .obey(&["end", "0", "18446744073709551615"])
            .unwrap();
        let (count, time_ns) = told.split_once(' ').unwrap();
        assert!(count.parse::<usize>().unwrap() >= LEAST_READINGS);
        assert!(time_ns.parse::<f64>().unwrap() > 0.0);
        assert_eq!(yardstick.obey(&["end", "0", "1"]).unwrap(), "0 0.000");
    }

    #[test]
    fn a_try_tells_so_many_pairs() {
        let cpu = a_cpu();
        let told = Yardstick::default()
            .obey(&["try", &cpu, &cpu, "3"])
            .unwrap();
        assert_eq!(told.lines().count(), 3);
        let numbers = told
            .split_whitespace()
            .map(|word| word.parse::<f64>().unwrap());
        assert!(numbers.count() == 6);
    }

    #[test]
    fn a_cpu_that_may_not_be_used_is_none_to_try_on() {
        let none = (libc::CPU_SETSIZE - 1).to_string(); // no machine has so many
        assert_eq!(
            Yardstick::default().obey(&["try", &a_cpu(), &none, "1"]),
            None
        );
        assert_eq!(
            Yardstick::default().obey(&["try", &none, &a_cpu(), "1"]),
            None
        );
    }

    #[test]
    fn what_is_not_understood_has_no_answer() {
        for words in [
            &["begin"][..],
            &["begin", "x"],
            &["end", "1"],
            &["try", "0", "", "1"],
            &["?"],
        ] {
            assert_eq!(Yardstick::default().obey(words), None);
        }
        assert_eq!(listed("0,99999"), None);
    }
}
