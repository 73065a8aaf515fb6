//! Several copies of a test at once, each a process: it waits for a number of units, does them, stamps its own start
//! and end, and says what it verified. The controlling process only sends and receives.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};

use serde::{Deserialize, Serialize};

use super::process::{pipe_files, Child};
use crate::report::Failed;
use crate::windows::Span;

/// So many units end a copy.
const NO_MORE: u64 = 0;

/// A copy's work, ready to run: do so many units.
pub type Work = Box<dyn FnMut(u64) -> Result<Lap, Failed>>;

/// What one go of a copy was.
#[derive(Clone, Debug)]
pub struct Lap {
    pub span: Span,
    /// What its verification found to be wrong.
    pub wrong: Option<String>,
}

impl Lap {
    /// Time `body`, which does the work and only that.
    pub fn of(body: impl FnOnce()) -> Lap {
        Lap {
            span: Span::of(body),
            wrong: None,
        }
    }

    /// Time `step`, done so many times, each time saying what is wrong with it. The first that is wrong is kept and
    /// the rest is done all the same: a window must not become short, and its end is what tells.
    pub fn repeating(
        times: u64,
        mut step: impl FnMut() -> Result<Option<String>, Failed>,
    ) -> Result<Lap, Failed> {
        let mut wrong = None;
        let mut failed = Ok(());
        let lap = Lap::of(|| {
            for _ in 0..times {
                match step() {
                    Ok(None) => {}
                    Ok(found) => wrong = wrong.take().or(found),
                    Err(why) => {
                        failed = Err(why);
                        break;
                    }
                }
            }
        });
        failed.map(|()| lap.verified(wrong))
    }

    /// The lap with what was found afterwards.
    pub fn verified(self, wrong: Option<String>) -> Lap {
        Lap { wrong, ..self }
    }
}

/// The copies, waiting for work. Dropped, they clean up and end.
pub struct Copies {
    workers: Vec<Worker>,
}

impl Copies {
    /// Start `count` processes; each prepares its own work.
    pub fn start(
        count: u64,
        prepare: impl Fn(u64) -> Result<Work, Failed>,
    ) -> Result<Copies, Failed> {
        let mut copies = Copies {
            workers: Vec::new(),
        };
        for number in 0..count {
            copies.workers.push(Worker::start(|| prepare(number))?);
        }
        for worker in &mut copies.workers {
            worker.receive()?; // all have prepared
        }
        Ok(copies)
    }

    /// Let every copy do `units` units at once.
    pub fn run(&mut self, units: u64) -> Result<Vec<Lap>, Failed> {
        for worker in &mut self.workers {
            worker.send(units)?;
        }
        self.workers.iter_mut().map(Worker::receive).collect()
    }
}

struct Worker {
    commands: File,
    replies: BufReader<File>,
    child: Option<Child>,
}

impl Worker {
    fn start(prepare: impl FnOnce() -> Result<Work, Failed>) -> Result<Worker, Failed> {
        let (commands_in, commands) = pipe_files()?;
        let (replies, replies_out) = pipe_files()?;
        // SAFETY: the process of a unix-* probe has one thread. (That of its unit tests has more: there it relies on the
        // C library, whose allocator can be used in the child, and on no test being in the midst of printing.)
        let child = unsafe { Child::fork(|| serve(prepare, &commands_in, &replies_out)) }?;
        Ok(Worker {
            commands,
            replies: BufReader::new(replies),
            child: Some(child),
        })
    }

    fn send(&mut self, units: u64) -> Result<(), Failed> {
        self.commands
            .write_all(&units.to_ne_bytes())
            .map_err(|_| ended())
    }

    fn receive(&mut self) -> Result<Lap, Failed> {
        let mut line = String::new();
        let length = self.replies.read_line(&mut line).unwrap_or(0);
        if length == 0 {
            return Err(ended());
        }
        let reply: Reply = serde_json::from_str(&line).map_err(|_| ended())?;
        reply.into()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.send(NO_MORE);
        if let Some(child) = self.child.take() {
            let _ = child.wait(); // it cleans up first
        }
    }
}

fn ended() -> Failed {
    Failed::new(
        "system",
        "a copy of the test ended before its work was done",
        "the copy's process",
        "signal 9 is mostly the OOM killer: give the instance more memory, or run fewer copies",
    )
}

/// The life of a copy: the first reply says whether it is prepared.
fn serve(
    prepare: impl FnOnce() -> Result<Work, Failed>,
    mut commands: &File,
    mut replies: &File,
) -> i32 {
    let mut reply = |outcome: Result<Lap, Failed>| {
        let line = serde_json::to_string(&Reply::from(outcome)).expect("plain data") + "\n";
        replies.write_all(line.as_bytes()).is_ok()
    };
    let mut work = match prepare() {
        Ok(work) => work,
        Err(failed) => {
            reply(Err(failed));
            return 1;
        }
    };
    let nothing = Span {
        start_ns: 0,
        end_ns: 0,
    };
    let mut heard = reply(Ok(Lap {
        span: nothing,
        wrong: None,
    }));
    let mut units = [0; 8];
    while heard && commands.read_exact(&mut units).is_ok() {
        match u64::from_ne_bytes(units) {
            NO_MORE => break,
            units => heard = reply(work(units)),
        }
    }
    drop(work); // its process ends without dropping anything
    0
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Done {
        start_ns: u64,
        end_ns: u64,
        wrong: Option<String>,
    },
    Failed {
        kind: String,
        what: String,
        place: String,
        remedy: String,
    },
}

impl From<Result<Lap, Failed>> for Reply {
    fn from(outcome: Result<Lap, Failed>) -> Reply {
        match outcome {
            Ok(lap) => Reply::Done {
                start_ns: lap.span.start_ns,
                end_ns: lap.span.end_ns,
                wrong: lap.wrong,
            },
            Err(failed) => Reply::Failed {
                kind: failed.kind.to_owned(),
                what: failed.what,
                place: failed.place,
                remedy: failed.remedy.to_owned(),
            },
        }
    }
}

impl From<Reply> for Result<Lap, Failed> {
    fn from(reply: Reply) -> Result<Lap, Failed> {
        match reply {
            Reply::Done {
                start_ns,
                end_ns,
                wrong,
            } => Ok(Lap {
                span: Span { start_ns, end_ns },
                wrong,
            }),
            Reply::Failed {
                kind,
                what,
                place,
                remedy,
            } => Err(Failed {
                kind: kind.leak(), // once: the probe ends with it
                what,
                place,
                remedy: remedy.leak(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_does_the_work_in_its_own_process() {
        let prepare = |number: u64| {
            let mut sum = number;
            Ok(
                Box::new(move |units| Ok(Lap::of(|| sum += units).verified(Some(sum.to_string()))))
                    as Work,
            )
        };
        let mut copies = Copies::start(2, prepare).unwrap();
        copies.run(10).unwrap();
        let said: Vec<_> = copies
            .run(20)
            .unwrap()
            .into_iter()
            .map(|lap| lap.wrong.unwrap())
            .collect();
        assert_eq!(said, ["30", "31"]);
    }

    #[test]
    fn a_wrong_step_is_told_and_does_not_end_the_work() {
        let mut steps = 0;
        let lap = Lap::repeating(5, || {
            steps += 1;
            Ok((steps > 1).then(|| format!("step {steps}")))
        });
        assert_eq!(lap.unwrap().wrong.unwrap(), "step 2");
        assert_eq!(steps, 5);
    }

    #[test]
    fn a_failure_keeps_its_kind_on_the_way() {
        let failed = || Failed::new("space", "no space left", "/var/tmp", "free some");
        let preparing = Copies::start(1, |_| Err(failed())).err();
        assert_eq!(preparing, Some(failed()));
        let prepare = |_| Ok(Box::new(move |_| Err(failed())) as Work);
        let working = Copies::start(1, prepare).unwrap().run(1).err();
        assert_eq!(working, Some(failed()));
    }

    #[test]
    fn a_copy_that_dies_is_a_failure() {
        let prepare = |_| {
            let work = |_| -> Result<Lap, Failed> {
                // SAFETY: ends this copy's process.
                unsafe { libc::_exit(1) }
            };
            Ok(Box::new(work) as Work)
        };
        let failed = Copies::start(2, prepare).unwrap().run(1).unwrap_err();
        assert_eq!(failed.kind, "system");
    }
}
