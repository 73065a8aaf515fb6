//! Block devices whose bytes a control group has twice: what is asked of them is asked of others in turn.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

/// Which devices are left out of a control group's sum.
///
/// Those of device-mapper (LVM, dm-crypt) hand each bio on as a copy to the devices that they stand on, and the kernel
/// books both to the group. Those that hand on requests (multipath, which has queues of its own) are booked alone. What
/// dm-crypt writes is a bio of its own, of a kernel thread: below it is booked to the root group.
pub struct Devices {
    root: PathBuf,
    known: HashMap<String, HandsOn>,
}

/// What is booked below a device once more.
#[derive(Clone, Copy)]
enum HandsOn {
    Nothing,
    Reads,
    All,
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
                    HandsOn::All => None,
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
        let stands_on_others = there.join("dm").exists()
            && !there.join("mq").exists()
            && fs::read_dir(there.join("slaves")).is_ok_and(|mut under| under.next().is_some());
        let is_crypt =
            || fs::read(there.join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with(b"CRYPT-"));
        let hands_on = match stands_on_others {
            false => HandsOn::Nothing,
            true if is_crypt() => HandsOn::Reads,
            true => HandsOn::All,
        };
        self.known.insert(number.to_owned(), hands_on);
        hands_on
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
        ] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        fs::write(root.join("253:4/dm/uuid"), "CRYPT-LUKS2-x\n").unwrap();
        fs::write(root.join("253:5/dm/uuid"), "LVM-x\n").unwrap();
        let mut devices = Devices {
            root: root.clone(),
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
