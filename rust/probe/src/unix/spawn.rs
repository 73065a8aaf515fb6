//! UnixBench's process creation: fork a child that ends at once, and wait for it.

use std::io;

use super::copies::{Lap, Work};
use super::process::{no_process, wait_for};
use super::Quantity;
use crate::report::Failed;

pub const QUANTITY: Quantity = Quantity {
    key: "processes_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "every child ended well",
};

/// A copy's work; a unit is one child.
pub fn prepare() -> Result<Work, Failed> {
    Ok(Box::new(|units| Lap::repeating(units, || spawned(0))))
}

/// Make a child that ends with `code`; what is wrong with its end.
fn spawned(code: libc::c_int) -> Result<Option<String>, Failed> {
    // SAFETY: the child calls nothing but _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    if pid < 0 {
        return Err(no_process(&io::Error::last_os_error()));
    }
    let status = wait_for(pid)?;
    Ok((status != 0).then(|| format!("a child ended with wait status {status:#x}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_ends_badly_is_caught() {
        assert_eq!(spawned(0), Ok(None));
        assert!(spawned(1).unwrap().is_some());
    }
}
