//! The disk beneath a file, where it can be told: whether a sync really reached it.

use std::fs;
use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/dev/block";
/// Which number of a disk's `stat` counts flushes (Linux 5.5 or later).
const FLUSHES: usize = 15;

/// A disk that keeps a write cache and counts how often it is told to flush it.
pub struct Device {
    directory: PathBuf,
}

impl Device {
    /// The disk with this device number (st_dev). None where there is none (an overlay has only a number), where it
    /// has no write cache to flush, where it is made of others, which count in its place, where it counts none itself,
    /// or where /sys is missing.
    pub fn of(number: u64) -> Option<Device> {
        let (major, minor) = (libc::major(number), libc::minor(number));
        Device::at(Path::new(DEVICES).join(format!("{major}:{minor}")))
    }

    fn at(mut directory: PathBuf) -> Option<Device> {
        if directory.join("partition").exists() {
            directory = fs::canonicalize(&directory).ok()?.parent()?.to_owned();
        }
        // Flushes are counted where requests are queued. What hands on whole bios counts none, and its number stands at
        // 0: the head of an NVMe disk with several paths, above all (op_stat_group of linux/blk_types.h).
        if !directory.join("mq").exists() {
            return None;
        }
        let cache = fs::read_to_string(directory.join("queue/write_cache")).ok()?;
        let is_made_of_others =
            fs::read_dir(directory.join("slaves")).is_ok_and(|mut of| of.next().is_some());
        let device = Device { directory };
        let counts =
            cache.trim() == "write back" && !is_made_of_others && device.flushes().is_some();
        counts.then_some(device)
    }

    /// How often it has been told to flush, since it is there.
    pub fn flushes(&self) -> Option<u64> {
        flushes(&fs::read_to_string(self.directory.join("stat")).ok()?)
    }
}

fn flushes(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(FLUSHES)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_counted_where_the_kernel_counts_them() {
        let stat = "  393 129 20586 20 58135 0 472232 551 0 80 572 0 0 0 0 4 0\n";
        assert_eq!(flushes(stat), Some(4));
        assert_eq!(
            flushes("393 129 20586 20 58135 0 472232 551 0 80 572"),
            None
        );
    }

    #[test]
    fn a_disk_that_counts_no_flushes_proves_nothing() {
        let sys = crate::names::Directory::new();
        let (disk, partition) = (sys.0.join("disk"), sys.0.join("disk/partition1"));
        fs::create_dir_all(&partition).unwrap();
        fs::create_dir(disk.join("queue")).unwrap();
        fs::write(disk.join("queue/write_cache"), "write back\n").unwrap();
        fs::write(disk.join("stat"), "0 ".repeat(17)).unwrap();
        fs::write(partition.join("partition"), "1\n").unwrap();
        let counts = || {
            [&disk, &partition].map(|at| Device::at(at.clone()).and_then(|device| device.flushes()))
        };
        assert_eq!(counts(), [None; 2], "of whole bios");
        fs::create_dir(disk.join("mq")).unwrap();
        assert_eq!(counts(), [Some(0); 2], "of requests");
    }

    #[test]
    fn what_is_no_disk_has_no_device() {
        assert!(Device::of(libc::makedev(0, 1)).is_none());
    }
}
