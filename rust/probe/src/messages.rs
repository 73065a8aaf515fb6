//! Many messages in one call: sendmmsg(2) and recvmmsg(2), wrapped once.

use std::io;
use std::os::fd::RawFd;

use libc::c_int;

/// Send `headers` as far as the kernel takes them; how many went.
///
/// The call is the kernel's own: the C library of static builds makes one for each message (musl's sendmmsg.c).
///
/// # Safety
///
/// What the headers point to must be valid for reading, and their padding zero: musl has it in place of the kernel's
/// longer fields.
pub unsafe fn send(fd: RawFd, headers: &mut [libc::mmsghdr], flags: c_int) -> io::Result<usize> {
    // SAFETY: the caller's.
    uninterrupted(|| unsafe {
        libc::syscall(
            libc::SYS_sendmmsg,
            fd,
            headers.as_mut_ptr(),
            headers.len(),
            flags,
        ) as isize
    })
}

/// Wait for one message and take what else is there; how many came. WouldBlock after the socket's time-out.
///
/// # Safety
///
/// What the headers point to must be valid for writing.
pub unsafe fn receive(fd: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: the caller's.
    uninterrupted(|| unsafe {
        libc::recvmmsg(
            fd,
            headers.as_mut_ptr(),
            headers.len() as _,
            libc::MSG_WAITFORONE as _,
            std::ptr::null_mut(),
        ) as isize
    })
}

/// A socket with a time-out ends its call where the process was stopped and goes on (signal(7)): nothing has failed.
pub fn uninterrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        match usize::try_from(call()).map_err(|_| io::Error::last_os_error()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
