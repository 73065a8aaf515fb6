//! Anonymous memory with a page size that was asked for.

use std::fs;
use std::io;
use std::ptr;

use crate::arguments::Arguments;
use crate::report::{Failed, Report};

pub const SMALL_BYTES: usize = 4096;
const HUGE_BYTES: usize = 2 << 20;
/// Of what could be in huge pages, so many hundredths must be.
const ENOUGH_PERCENT: u64 = 90;

/// The size of the pages a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pages {
    Small,
    Huge,
}

impl Pages {
    /// `--pages small|huge`.
    pub fn from(arguments: &mut Arguments) -> Pages {
        match arguments.one_of("pages", &["small", "huge"]) {
            "huge" => Pages::Huge,
            _ => Pages::Small,
        }
    }

    /// One of them.
    pub fn bytes(self) -> usize {
        match self {
            Pages::Small => SMALL_BYTES,
            Pages::Huge => HUGE_BYTES,
        }
    }
}

/// Private anonymous memory, whole pages of the size that was asked for and aligned to it. Not touched yet: all zero.
pub struct Mapping {
    /// What was mapped.
    reserved: *mut u8,
    reserved_bytes: usize,
    start: *mut u8,
    bytes: usize,
    pages: Pages,
}

// SAFETY: it owns its memory, as a Box would; nothing in it depends on the thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Map at least `bytes`.
    pub fn new(bytes: usize, pages: Pages) -> Result<Mapping, Failed> {
        let page = pages.bytes();
        let bytes = bytes.next_multiple_of(page);
        let reserved_bytes = bytes + page - SMALL_BYTES; // room to begin at a huge page's boundary
                                                         // SAFETY: a new private mapping at an address that the system chooses.
        let reserved = unsafe {
            libc::mmap(
                ptr::null_mut(),
                reserved_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(Failed::new(
                "memory",
                format!("{bytes} bytes: {}", io::Error::last_os_error()),
                "mmap",
                "choose a smaller size, or more memory for the instance",
            ));
        }
        let reserved: *mut u8 = reserved.cast();
        let mapping = Mapping {
            reserved,
            reserved_bytes,
            start: reserved.wrapping_add(reserved.align_offset(page)),
            bytes,
            pages,
        };
        mapping.advise()?;
        Ok(mapping)
    }

    /// Ask for the page size. A kernel without huge pages refuses either advice, and gives small ones.
    fn advise(&self) -> Result<(), Failed> {
        let advice = match self.pages {
            Pages::Small => libc::MADV_NOHUGEPAGE,
            Pages::Huge => libc::MADV_HUGEPAGE,
        };
        // SAFETY: the range lies within the mapping; the advice changes no content.
        let refused = unsafe { libc::madvise(self.start.cast(), self.bytes, advice) } != 0;
        if refused && self.pages == Pages::Huge {
            return Err(no_huge_pages(&io::Error::last_os_error().to_string()));
        }
        Ok(())
    }

    pub fn start(&self) -> *mut u8 {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of it that stand in huge pages now; None where the system does not tell.
    pub fn in_huge_pages(&self) -> Option<u64> {
        let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
        let start = self.start as u64;
        Some(huge_bytes(&smaps, start, start + self.bytes as u64))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; whoever holds a pointer into it does not outlive the probe's own use.
        unsafe { libc::munmap(self.reserved.cast(), self.reserved_bytes) };
    }
}

fn no_huge_pages(why: &str) -> Failed {
    Failed::new(
        "huge-pages",
        format!("the system gives no transparent huge pages: {why}"),
        "madvise(MADV_HUGEPAGE)",
        "use --pages small, or a kernel with /sys/kernel/mm/transparent_hugepage/enabled at madvise or always",
    )
}

/// Bytes in huge pages of the mappings that begin within an address range, from the text of /proc/PID/smaps.
fn huge_bytes(smaps: &str, from: u64, to: u64) -> u64 {
    let mut within = false;
    let mut kib = 0;
    for line in smaps.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some((start, _)) = word.split_once('-') {
            within = u64::from_str_radix(start, 16).is_ok_and(|start| (from..to).contains(&start));
        } else if within && word == "AnonHugePages:" {
            kib += rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    kib * 1024
}

/// Note the page size of touched mappings and prove that it is the one asked for.
pub fn report_pages(report: &mut Report, mappings: &[&Mapping]) {
    let achieved: Option<u64> = mappings.iter().map(|mapping| mapping.in_huge_pages()).sum();
    let all = mappings.iter().map(|mapping| mapping.bytes as u64).sum();
    let pages = mappings
        .first()
        .map_or(Pages::Small, |mapping| mapping.pages);
    report_achieved(report, pages, achieved, all);
}

/// The same, where `achieved` of `all` bytes were found in huge pages.
pub fn report_achieved(report: &mut Report, pages: Pages, achieved: Option<u64>, all: u64) {
    report.fact("mapped_bytes", all);
    report.fact("huge_page_bytes", achieved);
    let Some(achieved) = achieved else {
        report.notes.push(
            "the page size is not proved: the system has no /proc/self/smaps to tell it".to_owned(),
        );
        return;
    };
    let right = match pages {
        Pages::Small => achieved == 0,
        Pages::Huge => achieved >= all / 100 * ENOUGH_PERCENT,
    };
    report.check(
        "page size",
        right,
        format!("{achieved} of {all} bytes in huge pages, asked for: {pages:?}"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 \nSize: 4096 kB\nAnonHugePages:      2048 kB\nVmFlags: rd\n\
7f0000400000-7f0000600000 rw-p 00000000 00:00 0 [stack]\nAnonHugePages:  2048 kB\n\
7f0001000000-7f0001600000 rw-p 00000000 00:00 0\nAnonHugePages:  4096 kB\n";

    #[test]
    fn only_the_range_itself_is_counted() {
        assert_eq!(
            huge_bytes(SMAPS, 0x7f00_0000_0000, 0x7f00_0060_0000),
            4 << 20
        );
        assert_eq!(
            huge_bytes(SMAPS, 0x7f00_0100_0000, 0x7f00_0160_0000),
            4 << 20
        );
        assert_eq!(huge_bytes(SMAPS, 0x7f00_0200_0000, 0x7f00_0260_0000), 0);
    }

    #[test]
    fn another_page_size_than_asked_for_is_a_failed_check() {
        for (pages, achieved, passed) in [
            (Pages::Small, 0, true),
            (Pages::Small, 2 << 20, false),
            (Pages::Huge, 8 << 20, true),
            (Pages::Huge, 6 << 20, false),
        ] {
            let mut report = Report::default();
            report_achieved(&mut report, pages, Some(achieved), 8 << 20);
            assert_eq!(report.checks[0].passed, passed, "{pages:?} {achieved}");
        }
    }

    #[test]
    fn a_mapping_is_aligned_zero_and_in_small_pages_when_asked() {
        let mapping = Mapping::new(5000, Pages::Small).expect("two pages");
        assert_eq!(
            (mapping.bytes(), mapping.start() as usize % SMALL_BYTES),
            (8192, 0)
        );
        // SAFETY: within the mapping.
        unsafe {
            assert_eq!(*mapping.start().add(8191), 0);
            mapping.start().write(1);
        }
        assert_eq!(mapping.in_huge_pages(), Some(0));
    }
}
