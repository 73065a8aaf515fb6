//! Block devices whose bytes a control group has twice: what is asked of them is asked of others in turn.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::facts;

/// Which devices are left out of a control group's sum.
///
/// Those of device-mapper (LVM, dm-crypt) hand each bio on as a copy to the devices that they stand on, and the kernel
/// books both to the group. Those that hand on requests (multipath, which has queues of its own) are booked alone. What
/// dm-crypt writes is a bio of its own, of a kernel thread: below it is booked to the root group. Loop devices ask their file
/// in the name of who asked them, since Linux 5.14; through the page cache, unless they were told not to (`dio`). Arrays of
/// software RAID (md) hand on copies where they mirror, stripes (RAID 0) since Linux 5.14, appended disks (linear) since 6.6:
/// before, the bio itself goes down, and its bytes are booked but once. With parity they hand on what is read; what they
/// write is a kernel thread's.
pub struct Devices {
    root: PathBuf,
    kernel: (u32, u32), // its release: 5.14
    known: HashMap<String, HandsOn>,
}

/// What is booked below a device once more.
#[derive(Clone, Copy)]
enum HandsOn {
    Nothing,
    Reads,
    All,
    /// All; of version 1 reads, for what the page cache writes is booked to the root group there.
    Cached,
}

impl Default for Devices {
    fn default() -> Devices {
        Devices {
            root: "/sys/dev/block".into(),
            kernel: release(&facts::kernel()),
            known: HashMap::new(),
        }
    }
}

impl Devices {
    /// Without what is booked elsewhere too; a line begins with its device's number, `MAJOR:MINOR`.
    pub fn booked_once(&mut self, text: &mut Vec<u8>) {
        let Ok(all) = std::str::from_utf8(text) else {
            return;
        };
        let kept: String = all
            .split_inclusive('\n')
            .filter_map(
                |line| match self.hands_on(line.split(' ').next().unwrap_or_default()) {
                    HandsOn::Nothing => Some(line.to_owned()),
                    HandsOn::Reads => without_reads(line),
                    HandsOn::Cached if !line.contains('=') => without_reads(line), // version 1
                    HandsOn::All | HandsOn::Cached => None,
                },
            )
            .collect();
        if kept.len() < all.len() {
            *text = kept.into_bytes();
        }
    }

    fn hands_on(&mut self, number: &str) -> HandsOn {
        if let Some(known) = self.known.get(number) {
            return *known;
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_device = number
            .split_once(':')
            .is_some_and(|(major, minor)| is_number(major) && is_number(minor));
        if !is_device {
            return HandsOn::Nothing;
        }
        let there = self.root.join(number);
        let hands_on = match there.join("loop/backing_file").exists() {
            true => self.of_a_loop(&there),
            false => self.of_a_mapping(&there),
        };
        self.known.insert(number.to_owned(), hands_on);
        hands_on
    }

    fn of_a_loop(&self, there: &Path) -> HandsOn {
        let is_direct =
            || fs::read(there.join("loop/dio")).is_ok_and(|told| told.starts_with(b"1"));
        match self.kernel >= (5, 14) {
            false => HandsOn::Nothing,
            true if is_direct() => HandsOn::All,
            true => HandsOn::Cached,
        }
    }

    /// Of device-mapper, or of software RAID; of any other nothing.
    fn of_a_mapping(&self, there: &Path) -> HandsOn {
        let under = fs::read_dir(there.join("slaves"));
        if !under.is_ok_and(|mut under| under.next().is_some()) {
            return HandsOn::Nothing;
        }
        if there.join("dm").exists() {
            return of_device_mapper(there);
        }
        let says = |name: &str, word: &str| match fs::read_to_string(there.join(name)) {
            Ok(told) => told.trim_end() == word,
            Err(_) => true, // an older kernel has no such file
        };
        // One that lacks a disk, or is being laid out anew, reads in its kernel thread.
        let is_whole = || says("md/degraded", "0") && says("md/reshape_position", "none");
        let level = fs::read_to_string(there.join("md/level")).unwrap_or_default();
        match level.trim_end() {
            "raid1" | "raid10" => HandsOn::All,
            "raid0" if self.kernel >= (5, 14) && says("queue/iostats", "1") => HandsOn::All,
            "linear" if self.kernel >= (6, 6) => HandsOn::All,
            "raid4" | "raid5" | "raid6" if is_whole() => HandsOn::Reads,
            _ => HandsOn::Nothing,
        }
    }
}

fn of_device_mapper(there: &Path) -> HandsOn {
    let is_crypt = || fs::read(there.join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with(b"CRYPT-"));
    match there.join("mq").exists() {
        true => HandsOn::Nothing,
        false if is_crypt() => HandsOn::Reads,
        false => HandsOn::All,
    }
}

/// The first two numbers of a kernel's release, `5.14.0-503.el9`; 0.0 where it has none.
fn release(text: &str) -> (u32, u32) {
    let mut numbers = text.split(['.', '-']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

/// Of version 1, why a group's file tells of no bytes that were asked for.
///
/// The root group's has a line of each disk, used or not. Since Linux 6.10 there is none, in any group, of a disk for which
/// no throttle was ever set: nothing is counted there.
pub fn expect_counted(path: &Path) -> Result<(), String> {
    let files = path
        .ancestors()
        .skip(1)
        .map(|group| group.join(path.file_name().unwrap_or_default()));
    let Some(root) = files.take_while(|file| file.exists()).last() else {
        return Ok(()); // not even the group's own: whoever opens it says why
    };
    match fs::read_to_string(&root) {
        Ok(told) if !told.contains(':') => Err(format!(
            "{} names no disk: this kernel counts these bytes only where a throttle is set",
            root.display()
        )),
        _ => Ok(()),
    }
}

/// What a line tells but for reads: of version 2 it is all of a device, of version 1 one number.
fn without_reads(line: &str) -> Option<String> {
    if line.split(' ').nth(1) == Some("Read") {
        return None;
    }
    let mut fields: Vec<&str> = line.split(' ').collect();
    fields.retain(|field| !field.starts_with("rbytes="));
    Some(fields.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use virtoll_probe::names::unique;

    #[test]
    fn what_stands_on_others_is_booked_once() {
        let root = std::env::temp_dir().join(unique("virtoll-devices"));
        for made in [
            "8:0/mq",
            "253:0/dm",
            "253:0/slaves/sda", // LVM on a disk
            "253:1/dm",
            "253:1/mq",
            "253:1/slaves/sdb", // multipath
            "253:2/dm",
            "253:2/slaves", // dm-zero: it stands on none
            "253:4/dm",
            "253:4/slaves/sdc", // LUKS
            "253:5/dm",
            "253:5/slaves/dm-4", // LVM on LUKS
            "9:10/slaves",       // an array without members
        ] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        for (number, level) in [
            ("9:1", "raid1"),
            ("9:2", "raid5"),
            ("9:3", "raid0"),
            ("9:4", "linear"),
            ("9:5", "inactive"),
            ("9:6", "raid6"),
        ] {
            fs::create_dir_all(root.join(number).join("md")).unwrap();
            fs::create_dir_all(root.join(number).join("slaves/sda")).unwrap();
            fs::write(root.join(number).join("md/level"), format!("{level}\n")).unwrap();
        }
        fs::write(root.join("9:2/md/degraded"), "0\n").unwrap();
        fs::write(root.join("9:6/md/degraded"), "1\n").unwrap();
        fs::write(root.join("253:4/dm/uuid"), "CRYPT-LUKS2-x\n").unwrap();
        fs::write(root.join("253:5/dm/uuid"), "LVM-x\n").unwrap();
        let mut devices = Devices {
            root: root.clone(),
            kernel: (6, 12),
            ..Devices::default()
        };
        let v2 = "8:0 rbytes=4096 wbytes=8192\n253:0 rbytes=4096 wbytes=8192\n253:1 rbytes=1 wbytes=2\n253:2 rbytes=3\n";
        let v1 = "8:0 Read 7\n253:0 Read 7\n253:0 Total 7\nTotal 14\n";
        for (text, kept) in [
            (v2, v2.replace("253:0 rbytes=4096 wbytes=8192\n", "")),
            (v1, "8:0 Read 7\nTotal 14\n".to_owned()),
            (
                "8:32 rbytes=5 wbytes=0\n253:4 rbytes=5 wbytes=6 rios=1\n253:5 rbytes=5 wbytes=6\n",
                "8:32 rbytes=5 wbytes=0\n253:4 wbytes=6 rios=1\n".to_owned(),
            ),
            (
                "253:5 Write 6\n253:4 Read 5\n253:4 Write 6\n253:4 Total 11\n",
                "253:4 Write 6\n253:4 Total 11\n".to_owned(),
            ),
            (
                "9:1 rbytes=5 wbytes=6\n9:2 rbytes=5 wbytes=6\n9:3 rbytes=5\n9:4 rbytes=5\n9:5 rbytes=5\n9:10 rbytes=5\n",
                "9:2 wbytes=6\n9:5 rbytes=5\n9:10 rbytes=5\n".to_owned(),
            ),
            (
                "9:1 Read 5\n9:2 Read 5\n9:2 Write 6\n9:6 Read 5\n",
                "9:2 Write 6\n9:6 Read 5\n".to_owned(),
            ),
            ("9:0 Read 1", "9:0 Read 1".to_owned()),
            ("../x Read 1\n", "../x Read 1\n".to_owned()),
            ("", String::new()),
        ] {
            let mut bytes = text.as_bytes().to_vec();
            devices.booked_once(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), kept);
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_a_loop_device_asks_of_its_file_is_booked_once() {
        let root = std::env::temp_dir().join(unique("virtoll-loops"));
        for (number, direct) in [("7:0", "0\n"), ("7:1", "1\n")] {
            let there = root.join(number).join("loop");
            fs::create_dir_all(&there).unwrap();
            fs::write(there.join("backing_file"), "/x/disk.ext4\n").unwrap();
            fs::write(there.join("dio"), direct).unwrap();
        }
        fs::create_dir_all(root.join("7:2")).unwrap(); // without a file
        let v2 =
            "7:0 rbytes=1 wbytes=2\n7:1 rbytes=1 wbytes=2\n7:2 rbytes=3\n8:0 rbytes=2 wbytes=4\n";
        let v1 = "7:0 Read 1\n7:0 Write 2\n7:1 Read 1\n7:1 Write 2\n8:0 Read 2\n8:0 Write 2\n";
        for (text, kept) in [
            (v2, "7:2 rbytes=3\n8:0 rbytes=2 wbytes=4\n"),
            // What the page cache is to write is booked to nobody there.
            (v1, "7:0 Write 2\n8:0 Read 2\n8:0 Write 2\n"),
        ] {
            for (kernel, kept) in [((5, 14), kept), ((5, 13), text)] {
                let mut devices = Devices {
                    root: root.clone(),
                    kernel,
                    ..Devices::default()
                };
                let mut bytes = text.as_bytes().to_vec();
                devices.booked_once(&mut bytes);
                assert_eq!(String::from_utf8(bytes).unwrap(), kept);
            }
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_older_kernels_remap_is_booked_at_the_array_alone() {
        let root = std::env::temp_dir().join(unique("virtoll-arrays"));
        for (number, level) in [("9:0", "raid0\n"), ("9:1", "raid1\n"), ("9:9", "linear\n")] {
            fs::create_dir_all(root.join(number).join("md")).unwrap();
            fs::create_dir_all(root.join(number).join("slaves/sda")).unwrap();
            fs::write(root.join(number).join("md/level"), level).unwrap();
        }
        for (kernel, kept) in [
            ((5, 10), "9:0 rbytes=1\n9:9 rbytes=1\n"),
            ((5, 14), "9:9 rbytes=1\n"),
            ((6, 6), ""),
        ] {
            let mut devices = Devices {
                root: root.clone(),
                kernel,
                ..Devices::default()
            };
            let mut bytes = b"9:0 rbytes=1\n9:1 rbytes=1\n9:9 rbytes=1\n".to_vec();
            devices.booked_once(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), kept);
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn releases_of_kernels() {
        for (text, numbers) in [
            ("5.14.0-503.el9", (5, 14)),
            ("5.4.0-1-generic", (5, 4)),
            ("10.0", (10, 0)),
            ("", (0, 0)),
            ("x.y", (0, 0)),
        ] {
            assert_eq!(release(text), numbers, "{text}");
        }
    }
}
