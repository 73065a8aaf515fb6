//! A fork bomb: every process makes further ones as fast as it can.

use virtoll_probe::arguments::Arguments;

use crate::group::end_own;
use crate::shared::Shared;
use crate::{Aggressor, Work};

pub const AGGRESSOR: Aggressor = Aggressor {
    name: "fork",
    summary: "every process makes further processes as fast as it can",
    usage: "[--most-processes 256]",
    counts: &["forks", "refused", "held_back", "died"],
    prepare,
};

const FORKS: usize = 0;
const REFUSED: usize = 1;
const HELD_BACK: usize = 2;
const DIED: usize = 3;

fn prepare(arguments: &mut Arguments) -> Work {
    let most_processes = arguments.at_least("most-processes", 2, 256);
    Box::new(move |shared: &Shared| multiply(shared, most_processes))
}

/// What every process does. One that sees that the time is over ends them all: a supervisor in the same queue as
/// thousands of them may come late.
fn multiply(shared: &Shared, most_processes: u64) -> ! {
    loop {
        if shared.is_over() {
            end_own();
        }
        bury(shared);
        if !shared.take_place(most_processes) {
            shared.add(HELD_BACK, 1);
            continue;
        }
        // SAFETY: no process of the bomb has a second thread, so each child is an ordinary process.
        match unsafe { libc::fork() } {
            -1 => {
                shared.give_place();
                shared.add(REFUSED, 1);
            }
            0 => {}
            _ => {
                shared.count_made();
                shared.add(FORKS, 1);
            }
        }
    }
}

/// Reap children that were killed, most likely by the OOM killer: they would hold their places in vain.
fn bury(shared: &Shared) {
    // SAFETY: no status is wanted.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {
        shared.count_gone();
        shared.add(DIED, 1);
    }
}
