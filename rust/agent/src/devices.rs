//! Block devices whose bytes a control group has twice: what is asked of them is asked of others in turn.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

/// Which devices are left out of a control group's sum.
///
/// Those of device-mapper (LVM, dm-crypt) hand each bio on as a copy to the devices that they stand on, and the kernel
/// books both to the group. Those that hand on requests (multipath, which has queues of its own) are booked alone.
pub struct Devices {
    root: PathBuf,
    known: HashMap<String, bool>,
}

impl Default for Devices {
    fn default() -> Devices {
        Devices {
            root: "/sys/dev/block".into(),
            known: HashMap::new(),
        }
    }
}

impl Devices {
    /// Without the lines of devices that are left out; a line begins with its device's number, `MAJOR:MINOR`.
    pub fn booked_once(&mut self, text: &mut Vec<u8>) {
        let Ok(all) = std::str::from_utf8(text) else {
            return;
        };
        let kept: Vec<&str> = all
            .split_inclusive('\n')
            .filter(|line| !self.hands_on(line.split(' ').next().unwrap_or_default()))
            .collect();
        if kept.iter().map(|line| line.len()).sum::<usize>() < all.len() {
            *text = kept.concat().into_bytes();
        }
    }

    fn hands_on(&mut self, number: &str) -> bool {
        if let Some(known) = self.known.get(number) {
            return *known;
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let is_device = number
            .split_once(':')
            .is_some_and(|(major, minor)| is_number(major) && is_number(minor));
        let there = self.root.join(number);
        let hands_on = is_device
            && there.join("dm").exists()
            && !there.join("mq").exists()
            && fs::read_dir(there.join("slaves")).is_ok_and(|mut under| under.next().is_some());
        if is_device {
            self.known.insert(number.to_owned(), hands_on);
        }
        hands_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_others_is_booked_once() {
        let root = std::env::temp_dir().join(format!("virtoll-devices-{}", std::process::id()));
        for made in [
            "8:0/mq",
            "253:0/dm",
            "253:0/slaves/sda", // LVM on a disk
            "253:1/dm",
            "253:1/mq",
            "253:1/slaves/sdb", // multipath
            "253:2/dm",
            "253:2/slaves", // dm-zero: it stands on none
        ] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        let mut devices = Devices {
            root: root.clone(),
            ..Devices::default()
        };
        let v2 = "8:0 rbytes=4096 wbytes=8192\n253:0 rbytes=4096 wbytes=8192\n253:1 rbytes=1 wbytes=2\n253:2 rbytes=3\n";
        let v1 = "8:0 Read 7\n253:0 Read 7\n253:0 Total 7\nTotal 14\n";
        for (text, kept) in [
            (v2, v2.replace("253:0 rbytes=4096 wbytes=8192\n", "")),
            (v1, "8:0 Read 7\nTotal 14\n".to_owned()),
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
}
