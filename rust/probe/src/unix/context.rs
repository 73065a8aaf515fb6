//! UnixBench's pipe-based context switching: two processes hand an increasing number to and fro over two pipes.

use std::os::fd::{AsRawFd, OwnedFd};

use super::copies::{Lap, Work};
use super::process::{pipe, read_into, write_from, Child};
use super::Quantity;
use crate::report::Failed;

pub const QUANTITY: Quantity = Quantity {
    key: "loops_per_s",
    unit: "/s",
    per_unit: 1.0,
    proof: "every number came back as it was sent",
};

const NUMBER_BYTES: isize = 8;

/// The process that numbers are sent to, and the pipes' ends towards it.
struct Partner {
    numbers: OwnedFd,
    answers: OwnedFd,
    sent: u64,
    _child: Child,
}

/// A copy's work; a unit is a number sent and its answer: two switches.
pub fn prepare() -> Result<Work, Failed> {
    let mut partner = Partner::start(|number, expected| number == expected)?;
    Ok(Box::new(move |units| {
        Lap::repeating(units, || Ok(partner.exchange()))
    }))
}

impl Partner {
    fn start(is_right: impl Fn(u64, u64) -> bool) -> Result<Partner, Failed> {
        let (numbers_in, numbers) = pipe()?;
        let (answers, answers_out) = pipe()?;
        let answer_all = || {
            let (from, to) = (numbers_in.as_raw_fd(), answers_out.as_raw_fd());
            let mut expected = 0_u64;
            // It ends at a number out of order; the other end of its pipe tells.
            while receive(from).is_some_and(|number| is_right(number, expected))
                && send(to, expected)
            {
                expected += 1;
            }
            0
        };
        // SAFETY: the child only reads, compares and writes numbers: system calls, and no memory but its stack.
        let child = unsafe { Child::fork(answer_all) }?;
        Ok(Partner {
            numbers,
            answers,
            sent: 0,
            _child: child,
        })
    }

    /// One number there and back; what is wrong with it.
    #[inline]
    fn exchange(&mut self) -> Option<String> {
        let number = self.sent;
        let sent = send(self.numbers.as_raw_fd(), number);
        let answer = receive(self.answers.as_raw_fd());
        self.sent += 1;
        if sent && answer == Some(number) {
            return None;
        }
        Some(format!("{number} was sent, and the answer was {answer:?}"))
    }
}

fn send(descriptor: libc::c_int, number: u64) -> bool {
    write_from(descriptor, &number.to_ne_bytes()) == NUMBER_BYTES
}

fn receive(descriptor: libc::c_int) -> Option<u64> {
    let mut number = [0; NUMBER_BYTES as usize];
    (read_into(descriptor, &mut number) == NUMBER_BYTES).then(|| u64::from_ne_bytes(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_over_several_goes() {
        let mut work = prepare().unwrap();
        assert_eq!(work(100).unwrap().wrong, None);
        assert_eq!(work(10).unwrap().wrong, None);
    }

    #[test]
    fn a_number_out_of_order_is_caught() {
        let mut partner = Partner::start(|number, expected| number == expected).unwrap();
        assert_eq!(partner.exchange(), None);
        partner.sent += 1;
        assert!(partner.exchange().is_some());
    }
}
