//! io_uring by its three system calls (io_uring(7)): one ring, submitted to and reaped from by one thread.

use std::io::Error;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::report::Failed;

const SUBMISSIONS_OFFSET: i64 = 0;
const COMPLETIONS_OFFSET: i64 = 0x800_0000;
const ENTRIES_OFFSET: i64 = 0x1000_0000;
const ENTER_GETEVENTS: u32 = 1;
/// COOP_TASKRUN, SINGLE_ISSUER and DEFER_TASKRUN: completions wait until this one thread asks for them, instead of
/// interrupting it. fio asks for the same; Linux 6.1 or later.
const SETUP_DEFERRED: u32 = 1 << 8 | 1 << 12 | 1 << 13;
const OPCODE_READ: u8 = 22;
const OPCODE_WRITE: u8 = 23;

/// `struct io_sqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_address: u64,
}

/// `struct io_cqring_offsets`.
#[repr(C)]
#[derive(Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    entries: u32,
    flags: u32,
    reserved: u32,
    user_address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    poller_cpu: u32,
    poller_idle: u32,
    features: u32,
    workers_of: u32,
    reserved: [u32; 3],
    submission_offsets: SubmissionOffsets,
    completion_offsets: CompletionOffsets,
}

/// `struct io_uring_sqe`, the fields that reading and writing need.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    length: u32,
    operation_flags: u32,
    tag: u64,
    rest: [u64; 3],
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    tag: u64,
    result: i32,
    flags: u32,
}

/// A read or a write that is to be handed to the kernel.
pub struct Transfer {
    pub descriptor: RawFd,
    pub writes: bool,
    pub address: *mut u8,
    pub length: u32,
    pub offset: u64,
    /// Comes back with the result.
    pub tag: u32,
}

/// A ring for so many transfers at a time.
pub struct Ring {
    submissions: Mapping,
    completions: Mapping,
    entries: Mapping,
    submission_offsets: SubmissionOffsets,
    completion_offsets: CompletionOffsets,
    /// Queued, not yet taken by the kernel.
    queued: u32,
    /// Taken by the kernel, result not yet reaped: it may use their memory.
    in_flight: u32,
    /// Whether the kernel could be asked to defer completions.
    pub is_deferred: bool,
    descriptor: OwnedFd,
}

/// Where transfers are handed over and come back: the kernel's ring, or a test's own.
pub trait Transfers {
    /// How many transfers are queued or under way.
    fn busy(&self) -> u32;

    /// Queue a transfer; [`Transfers::submit`] hands it over.
    ///
    /// # Safety
    ///
    /// No more may be busy than the ring was made for, and `address` must be valid for `length` bytes, and for a read
    /// not be used otherwise, until the transfer's result has been reaped.
    unsafe fn queue(&mut self, transfer: &Transfer);

    /// Hand over what is queued.
    fn submit(&mut self) -> Result<(), Failed>;

    /// Wait until a transfer is done, and tell how many are. At least one must be under way.
    fn wait(&mut self) -> Result<u32, Failed>;

    /// The tag and result (bytes moved, or a negative errno) of a transfer that is done; None when no further one is.
    fn reap(&mut self) -> Option<(u32, i32)>;
}

impl Ring {
    /// A ring of `depth` entries; Failed of kind refused where the kernel has no io_uring or forbids it.
    pub fn new(depth: u32) -> Result<Ring, Failed> {
        let mut parameters = Parameters::default();
        let (descriptor, is_deferred) = match set_up(depth, SETUP_DEFERRED, &mut parameters) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (set_up(depth, 0, &mut parameters), false)
            }
            other => (other, true),
        };
        let descriptor = descriptor.map_err(|error| refused(&error))?;
        let of = &parameters.submission_offsets;
        let submission_bytes = of.array as usize + parameters.submissions as usize * 4;
        let of = &parameters.completion_offsets;
        let completion_bytes =
            of.entries as usize + parameters.completions as usize * mem::size_of::<Completion>();
        let entry_bytes = parameters.submissions as usize * mem::size_of::<Submission>();
        Ok(Ring {
            submissions: Mapping::of(&descriptor, SUBMISSIONS_OFFSET, submission_bytes)?,
            completions: Mapping::of(&descriptor, COMPLETIONS_OFFSET, completion_bytes)?,
            entries: Mapping::of(&descriptor, ENTRIES_OFFSET, entry_bytes)?,
            submission_offsets: parameters.submission_offsets,
            completion_offsets: parameters.completion_offsets,
            queued: 0,
            in_flight: 0,
            is_deferred,
            descriptor,
        })
    }

    /// Hand over what is queued and wait until so many transfers are done.
    ///
    /// Should the kernel fail while it still has memory of ours, there is no safe way on: the process ends.
    fn enter(&mut self, awaited: u32) -> Result<(), Failed> {
        let flags = if awaited > 0 { ENTER_GETEVENTS } else { 0 };
        loop {
            // SAFETY: what is queued is valid, as promised to `queue`; no signal mask is given.
            let taken = unsafe {
                libc::syscall(
                    libc::SYS_io_uring_enter,
                    self.descriptor.as_raw_fd(),
                    self.queued,
                    awaited,
                    flags,
                    ptr::null::<libc::sigset_t>(),
                    0_usize,
                )
            };
            if taken >= 0 {
                self.queued -= taken as u32;
                self.in_flight += taken as u32;
                return Ok(());
            }
            let error = Error::last_os_error();
            if matches!(
                error.raw_os_error(),
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
            ) {
                continue;
            }
            assert!(
                self.in_flight == 0,
                "io_uring_enter: {error}, with transfers under way"
            );
            return Err(refused(&error));
        }
    }

    /// How many transfers are done and not yet reaped.
    fn ready(&self) -> u32 {
        let offsets = &self.completion_offsets;
        let head = self.completions.atomic(offsets.head);
        let tail = self.completions.atomic(offsets.tail);
        tail.load(Ordering::Acquire)
            .wrapping_sub(head.load(Ordering::Relaxed))
    }
}

impl Transfers for Ring {
    fn busy(&self) -> u32 {
        self.queued + self.in_flight
    }

    unsafe fn queue(&mut self, transfer: &Transfer) {
        let offsets = &self.submission_offsets;
        let tail = self.submissions.atomic(offsets.tail);
        let mask = self
            .submissions
            .atomic(offsets.ring_mask)
            .load(Ordering::Relaxed);
        let number = tail.load(Ordering::Relaxed);
        let slot = number & mask;
        let submission = Submission {
            opcode: if transfer.writes {
                OPCODE_WRITE
            } else {
                OPCODE_READ
            },
            descriptor: transfer.descriptor,
            offset: transfer.offset,
            address: transfer.address as u64,
            length: transfer.length,
            tag: u64::from(transfer.tag),
            ..Submission::default()
        };
        // SAFETY: `slot` is below the number of entries, and the kernel does not look at it before the tail has moved.
        unsafe {
            self.entries
                .start
                .cast::<Submission>()
                .add(slot as usize)
                .write(submission)
        };
        self.submissions
            .atomic(offsets.array + slot * 4)
            .store(slot, Ordering::Relaxed);
        tail.store(number.wrapping_add(1), Ordering::Release);
        self.queued += 1;
    }

    fn submit(&mut self) -> Result<(), Failed> {
        while self.queued > 0 {
            self.enter(0)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<u32, Failed> {
        loop {
            match self.ready() {
                0 => self.enter(1)?,
                ready => return Ok(ready),
            }
        }
    }

    fn reap(&mut self) -> Option<(u32, i32)> {
        let offsets = &self.completion_offsets;
        let head = self.completions.atomic(offsets.head);
        let number = head.load(Ordering::Relaxed);
        if number
            == self
                .completions
                .atomic(offsets.tail)
                .load(Ordering::Acquire)
        {
            return None;
        }
        let mask = self
            .completions
            .atomic(offsets.ring_mask)
            .load(Ordering::Relaxed);
        // SAFETY: the slot is below the number of entries, and the kernel has written it before it moved the tail.
        let done = unsafe {
            let first = self.completions.start.add(offsets.entries as usize);
            first
                .cast::<Completion>()
                .add((number & mask) as usize)
                .read()
        };
        head.store(number.wrapping_add(1), Ordering::Release);
        self.in_flight -= 1;
        Some((done.tag as u32, done.result))
    }
}

fn set_up(depth: u32, flags: u32, parameters: &mut Parameters) -> Result<OwnedFd, Error> {
    *parameters = Parameters {
        flags,
        ..Parameters::default()
    };
    // SAFETY: `parameters` is valid for reading and writing and as large as the kernel expects.
    let descriptor =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, depth, ptr::from_mut(parameters)) };
    if descriptor < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}

fn refused(error: &Error) -> Failed {
    Failed::new(
        "refused",
        format!("io_uring is not to be had: {error}"),
        "io_uring_setup",
        "measure with engine = \"sync\"; a kernel without io_uring, the sysctl kernel.io_uring_disabled and a \
         container's seccomp profile forbid it",
    )
}

/// Memory shared with the kernel.
struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    fn of(ring: &OwnedFd, offset: i64, length: usize) -> Result<Mapping, Failed> {
        // SAFETY: a new mapping of the ring's own memory touches none of ours.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                ring.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Failed::system("mmap of the ring", &Error::last_os_error()));
        }
        let start = start.cast();
        Ok(Mapping { start, length })
    }

    /// The number at a byte offset that the kernel has given.
    fn atomic(&self, offset: u32) -> &AtomicU32 {
        assert!(offset as usize + 4 <= self.length);
        // SAFETY: in bounds, aligned as the kernel lays it out, and only ever used atomically on both sides.
        unsafe { AtomicU32::from_ptr(self.start.add(offset as usize).cast()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that `of` made; nobody borrows it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_as_large_as_the_kernels() {
        assert_eq!(mem::size_of::<Parameters>(), 120);
        assert_eq!(mem::size_of::<Submission>(), 64);
        assert_eq!(mem::size_of::<Completion>(), 16);
    }
}
