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
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendmmsg,
            fd,
            headers.as_mut_ptr(),
            headers.len(),
            flags,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Wait for one message and take what else is there; how many came. WouldBlock after the socket's time-out.
///
/// # Safety
///
/// What the headers point to must be valid for writing.
pub unsafe fn receive(fd: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: the caller's.
    let came = unsafe {
        libc::recvmmsg(
            fd,
            headers.as_mut_ptr(),
            headers.len() as _,
            libc::MSG_WAITFORONE as _,
            std::ptr::null_mut(),
        )
    };
    usize::try_from(came).map_err(|_| io::Error::last_os_error())
}
