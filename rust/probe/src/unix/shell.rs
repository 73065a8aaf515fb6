//! UnixBench's shell scripts: sort a text, dump and sort that, find and count lines, remove the files; some at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::copies::{Lap, Work};
use super::process::no_file;
use super::{measure, Quantity};
use crate::arguments::Arguments;
use crate::names::unique;
use crate::report::{Failed, Report};
use crate::Probe;

pub const SHELL: Probe = Probe {
    name: "unix-shell",
    summary: "shell scripts of sort, od, grep, tee, wc and rm",
    usage: "[--copies 1] [--scripts 1 (at once in each copy)] [--directory /var/tmp]",
    run,
};

const QUANTITY: Quantity = Quantity {
    key: "loops_per_min",
    unit: "/min",
    per_unit: 60.0,
    proof: "every script counted the right lines",
};

const SHELL_PATH: &str = "/bin/sh";
/// About as long as UnixBench's text.
const TEXT_LINES: u64 = 128;
const WORDS_A_LINE: u64 = 10;
const WORDS: [&str; 16] = [
    "and", "bridge", "cache", "disk", "engine", "file", "guest", "host", "in", "kernel", "memory",
    "of", "page", "the", "under", "with",
];
const SOUGHT: &str = "the";

/// One script: $1 names its files. The last line compares what was counted with $2.
const SCRIPT: &str = r#"sort text > sort.$1
od sort.$1 | sort -n -k 1 > od.$1
grep the sort.$1 | tee grep.$1 | wc -l > wc.$1
read count < wc.$1
rm sort.$1 od.$1 grep.$1 wc.$1
[ "$count" -eq "$2" ]
"#;

/// $1 scripts at once, waited for one by one: its exit code says whether all were right.
const SEVERAL: &str = r#"number=1
while [ $number -le $1 ]; do
    /bin/sh script $number $2 &
    started="$started $!"
    number=$((number + 1))
done
wrong=0
for process in $started; do
    wait $process || wrong=$((wrong + 1))
done
[ $wrong -eq 0 ]
"#;

fn run(arguments: &mut Arguments) -> Result<Report, Failed> {
    let scripts = arguments.at_least("scripts", 1, 1);
    let directory = arguments.get("directory", "/var/tmp".to_owned());
    measure(arguments, &QUANTITY, |_| {
        prepare(Path::new(&directory), scripts)
    })
}

/// A directory of one copy. Dropped, it is removed with all that is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn make(parent: &Path) -> Result<Scratch, Failed> {
        let path = parent.join(unique("virtoll-shell"));
        fs::create_dir(&path).map_err(|error| no_file(&path, &error))?;
        Ok(Scratch(path))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failed> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| no_file(&path, &error))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A copy's work; a unit is one run of the outer script.
fn prepare(parent: &Path, scripts: u64) -> Result<Work, Failed> {
    let scratch = Scratch::make(parent)?;
    let (text, lines) = text();
    scratch.write("text", &text)?;
    scratch.write("script", SCRIPT)?;
    scratch.write("several", SEVERAL)?;
    Ok(Box::new(move |units| {
        Lap::repeating(units, || once(&scratch, scripts, lines))
    }))
}

/// Run the outer script; what is wrong with its end.
fn once(scratch: &Scratch, scripts: u64, lines: u64) -> Result<Option<String>, Failed> {
    let status = Command::new(SHELL_PATH)
        .args(["several", &scripts.to_string(), &lines.to_string()])
        .current_dir(&scratch.0)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| {
            Failed::new(
                "system",
                error.to_string(),
                SHELL_PATH,
                "give the image a shell, coreutils and grep, and [limits] pids enough of them",
            )
        })?;
    Ok((!status.success()).then(|| format!("{scripts} scripts ended with {status}")))
}

/// Lines of words, always the same, and how many of them have the word that is sought.
fn text() -> (String, u64) {
    let mut state = 1_u64;
    let mut word = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407); // Knuth's MMIX
        WORDS[(state >> 60) as usize]
    };
    let lines: Vec<String> = (0..TEXT_LINES)
        .map(|_| {
            (0..WORDS_A_LINE)
                .map(|_| word())
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect();
    let sought = lines.iter().filter(|line| line.contains(SOUGHT)).count() as u64;
    (lines.join("\n") + "\n", sought)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_pass_their_own_check_and_leave_nothing() {
        let parent = Scratch::make(&std::env::temp_dir()).unwrap();
        let mut work = prepare(&parent.0, 2).unwrap();
        assert_eq!(work(2).unwrap().wrong, None);
        drop(work);
        assert_eq!(fs::read_dir(&parent.0).unwrap().count(), 0);
    }

    #[test]
    fn a_wrong_count_is_caught() {
        let scratch = Scratch::make(&std::env::temp_dir()).unwrap();
        let (text, lines) = text();
        scratch.write("text", &text).unwrap();
        scratch.write("script", SCRIPT).unwrap();
        scratch.write("several", SEVERAL).unwrap();
        assert_eq!(once(&scratch, 1, lines), Ok(None));
        assert!(once(&scratch, 2, lines + 1).unwrap().is_some());
        scratch.write("script", "exit 1").unwrap();
        let all = once(&scratch, 256, lines).unwrap();
        assert!(all.is_some(), "an exit code has eight bits");
    }

    #[test]
    fn a_missing_directory_is_a_failure() {
        let failed = prepare(Path::new("/nowhere"), 1).err().unwrap();
        assert_eq!(failed.kind, "system");
    }
}
