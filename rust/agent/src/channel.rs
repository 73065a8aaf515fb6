//! The byte stream to the controller: stdin and stdout, a virtio-serial port, or a tty.

use std::fs;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use virtoll_wire::protocol::LONGEST_REQUEST_BYTES;

const DEVICE_PATIENCE: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Both directions of the stream, and what was read but not yet taken as a line.
pub struct Channel {
    input: OwnedFd,
    output: fs::File,
    pending: Vec<u8>,
    scanned: usize,
}

impl Channel {
    /// The stdin and stdout this process was started with; what it starts later gets neither.
    pub fn stdio() -> io::Result<Channel> {
        Ok(Channel::new(duplicate(0)?, fs::File::from(duplicate(1)?)))
    }

    /// A character device. Waits until it exists and, for a virtio port, until the host's end is connected.
    pub fn device(path: &Path) -> io::Result<Channel> {
        let file = open_when_there(path)?;
        if is_tty(&file) {
            make_raw(&file)?;
            quieten_kernel();
        } else {
            wait_for_host(&file)?;
        }
        // A virtio port opens only once, so both directions share one open file.
        Ok(Channel::new(duplicate(file.as_raw_fd())?, file))
    }

    fn new(input: OwnedFd, output: fs::File) -> Channel {
        Channel {
            input,
            output,
            pending: Vec::new(),
            scanned: 0,
        }
    }

    /// What to poll for input.
    pub fn fd(&self) -> RawFd {
        self.input.as_raw_fd()
    }

    /// What to poll it for: while more waits to be taken than a request may have, only for its end.
    pub fn interest(&self) -> libc::c_short {
        if self.pending.len() > LONGEST_REQUEST_BYTES {
            libc::POLLRDHUP
        } else {
            libc::POLLIN
        }
    }

    /// Read what is there (after poll said so). False at the end of the stream.
    pub fn fill(&mut self) -> bool {
        let mut chunk = MaybeUninit::<[u8; 16384]>::uninit();
        // SAFETY: the kernel writes at most the buffer's size into it, and only the bytes it wrote are looked at.
        let read = unsafe { libc::read(self.fd(), chunk.as_mut_ptr().cast(), 16384) };
        match read {
            -1 => matches!(
                io::Error::last_os_error().kind(),
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
            ),
            0 => false,
            count => {
                // SAFETY: read() has just initialised the first `count` bytes.
                let bytes = unsafe {
                    std::slice::from_raw_parts(chunk.as_ptr().cast::<u8>(), count as usize)
                };
                self.pending.extend_from_slice(bytes);
                true
            }
        }
    }

    /// The next whole line without its newline, if one is there.
    pub fn next_line(&mut self) -> Option<Vec<u8>> {
        let Some(end) = self.pending[self.scanned..]
            .iter()
            .position(|&byte| byte == b'\n')
        else {
            self.scanned = self.pending.len();
            if self.scanned > LONGEST_REQUEST_BYTES {
                self.pending.clear(); // noise: no request is that long
                self.scanned = 0;
            }
            return None;
        };
        let rest = self.pending.split_off(self.scanned + end + 1);
        let mut line = std::mem::replace(&mut self.pending, rest);
        self.scanned = 0;
        line.pop();
        Some(line)
    }

    /// Write all of `bytes`; an error is the end of the stream.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.write_all(bytes)
    }
}

fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the descriptor it returns is new and owned by nobody else.
    unsafe {
        match libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) {
            -1 => Err(io::Error::last_os_error()),
            copy => Ok(OwnedFd::from_raw_fd(copy)),
        }
    }
}

/// Devices appear while drivers probe: wait for it a while.
fn open_when_there(path: &Path) -> io::Result<fs::File> {
    let give_up = Instant::now() + DEVICE_PATIENCE;
    loop {
        match fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(resolve(path))
        {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < give_up => {
                std::thread::sleep(POLL_INTERVAL);
            }
            outcome => return outcome,
        }
    }
}

/// udev makes /dev/virtio-ports/NAME; without udev the port's name is found in sysfs.
fn resolve(path: &Path) -> PathBuf {
    let wanted = match path.strip_prefix("/dev/virtio-ports") {
        Ok(name) if !path.exists() => name.to_string_lossy(),
        _ => return path.to_path_buf(),
    };
    let ports = fs::read_dir("/sys/class/virtio-ports")
        .into_iter()
        .flatten()
        .flatten();
    ports
        .filter(|port| {
            fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim_end() == wanted)
        })
        .map(|port| Path::new("/dev").join(port.file_name()))
        .next()
        .unwrap_or_else(|| path.to_path_buf())
}

fn is_tty(file: &fs::File) -> bool {
    // SAFETY: isatty only looks at the descriptor.
    unsafe { libc::isatty(file.as_raw_fd()) == 1 }
}

/// No echo, no line editing, no translation of newlines: bytes pass as they are.
fn make_raw(file: &fs::File) -> io::Result<()> {
    let mut settings = MaybeUninit::<libc::termios>::uninit();
    // SAFETY: tcgetattr fills the structure before it is used; the others only change or read it.
    unsafe {
        if libc::tcgetattr(file.as_raw_fd(), settings.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut settings = settings.assume_init();
        libc::cfmakeraw(&mut settings);
        if libc::tcsetattr(file.as_raw_fd(), libc::TCSANOW, &settings) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// A console that carries the protocol must not carry the kernel's messages, but for a panic.
fn quieten_kernel() {
    const CONSOLE_LEVEL: libc::c_int = 8; // SYSLOG_ACTION_CONSOLE_LEVEL, syslog(2)
                                          // SAFETY: this action takes no buffer. Failing (not root) is harmless: noise between lines is skipped.
    unsafe { libc::klogctl(CONSOLE_LEVEL, std::ptr::null_mut(), 1) };
}

/// A virtio port whose host end nobody has opened reads as ended and polls as hung up: wait until it does not.
fn wait_for_host(file: &fs::File) -> io::Result<()> {
    loop {
        let mut poll = libc::pollfd {
            fd: file.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd.
        if unsafe { libc::poll(&mut poll, 1, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if poll.revents & libc::POLLHUP == 0 {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
