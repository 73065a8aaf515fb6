//! Who a command runs as: what `config.User` of an OCI image means, by the image's own /etc/passwd and /etc/group.
//!
//! `user`, `uid`, `user:group`, `uid:gid`, `uid:group`, `user:gid`. A number is always an id, and need not be in the
//! files; without a group it is the user's own, with the groups that he is a member of (gid 0 for a stranger).

use std::io;
use std::path::Path;

use crate::paths;

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
const MOST_BYTES: u64 = 4 << 20; // of either: the image may have put anything there

/// An identity, and what belongs to it.
#[derive(Debug, PartialEq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub name: String, // "" for a stranger
    pub home: String,
}

/// Why a user cannot be: what is wrong, and in which file.
#[derive(Debug, PartialEq)]
pub struct Unknown {
    pub what: String,
    pub place: &'static str,
}

impl User {
    /// The user that `wanted` means in this instance.
    pub fn find(wanted: &str) -> Result<User, Unknown> {
        User::parse(wanted, &read(PASSWD)?, &read(GROUP)?)
    }

    fn parse(wanted: &str, passwd: &str, groups: &str) -> Result<User, Unknown> {
        let (name, group) = match wanted.split_once(':') {
            Some((name, group)) => (name, Some(group)),
            None => (wanted, None),
        };
        let entry = entries(passwd).find(|fields| is_called(fields, name));
        let (uid, own_gid) = match &entry {
            Some(fields) => (fields[2].parse().ok(), fields[3].parse().ok()),
            None => (name.parse().ok(), Some(0)),
        };
        let (Some(uid), Some(own_gid)) = (uid, own_gid) else {
            let what = format!("no user {name:?}");
            let place = PASSWD;
            return Err(Unknown { what, place });
        };
        let known = entry.as_ref().map_or("", |fields| fields[0]);
        let gid = group.map_or(Ok(own_gid), |group| find_group(group, groups))?;
        let mut all = vec![gid];
        if group.is_none() && !known.is_empty() {
            all.extend(member_of(known, groups).filter(|&other| other != gid));
        }
        let home = entry.as_ref().and_then(|fields| fields.get(5));
        Ok(User {
            uid,
            gid,
            groups: all,
            name: known.to_string(),
            home: home
                .filter(|home| !home.is_empty())
                .unwrap_or(&"/")
                .to_string(),
        })
    }
}

/// A file that is not there has no entries.
fn read(path: &'static str) -> Result<String, Unknown> {
    match paths::read(Path::new(path), MOST_BYTES) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Unknown {
            what: format!("cannot read: {error}"),
            place: path,
        }),
    }
}

/// Lines of `name:password:id:...`; others are passed over.
fn entries(file: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = file.lines().map(|line| line.split(':').collect());
    lines.filter(|fields: &Vec<&str>| fields.len() >= 4)
}

fn is_called(fields: &[&str], wanted: &str) -> bool {
    match wanted.parse::<u32>() {
        Ok(id) => fields[2].parse() == Ok(id),
        Err(_) => !wanted.is_empty() && fields[0] == wanted,
    }
}

fn find_group(wanted: &str, groups: &str) -> Result<u32, Unknown> {
    let found = wanted.parse().ok().or_else(|| {
        let fields = entries(groups).find(|fields| is_called(fields, wanted))?;
        fields[2].parse().ok()
    });
    found.ok_or_else(|| Unknown {
        what: format!("no group {wanted:?}"),
        place: GROUP,
    })
}

fn member_of<'a>(name: &'a str, groups: &'a str) -> impl Iterator<Item = u32> + 'a {
    entries(groups)
        .filter(move |fields| fields[3].split(',').any(|member| member == name))
        .filter_map(|fields| fields[2].parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\nproxy:x:13:14:proxy:/bin:/usr/sbin/nologin\nodd:x:many:1:::\n";
    const GROUPS: &str = "shadow:x:42:\nssl-cert:x:107:www-data,proxy\nproxy:x:14:proxy\n";

    fn ids(wanted: &str) -> (u32, u32, Vec<u32>, String, String) {
        let user = User::parse(wanted, PASSWD, GROUPS).unwrap();
        (user.uid, user.gid, user.groups, user.name, user.home)
    }

    fn all(
        uid: u32,
        gid: u32,
        groups: &[u32],
        name: &str,
        home: &str,
    ) -> (u32, u32, Vec<u32>, String, String) {
        (uid, gid, groups.to_vec(), name.into(), home.into())
    }

    #[test]
    fn by_name_and_by_number() {
        assert_eq!(ids("proxy"), all(13, 14, &[14, 107], "proxy", "/bin"));
        assert_eq!(ids("13"), ids("proxy"));
        assert_eq!(ids("0"), all(0, 0, &[0], "root", "/root"));
    }

    #[test]
    fn a_stranger_has_a_number_and_nothing_else() {
        assert_eq!(ids("1000"), all(1000, 0, &[0], "", "/"));
        assert_eq!(ids("1000:1001"), all(1000, 1001, &[1001], "", "/"));
        let bare = User::parse("7", "", "").unwrap();
        assert_eq!((bare.uid, bare.gid, bare.groups), (7, 0, vec![0]));
    }

    #[test]
    fn a_group_that_is_named_is_the_only_one() {
        assert_eq!(ids("proxy:shadow"), all(13, 42, &[42], "proxy", "/bin"));
        assert_eq!(ids("proxy:9"), all(13, 9, &[9], "proxy", "/bin"));
        assert_eq!(ids("1000:shadow"), all(1000, 42, &[42], "", "/"));
    }

    #[test]
    fn who_is_not_there_is_named() {
        for (wanted, what, place) in [
            ("squid", "no user \"squid\"", "/etc/passwd"),
            (":shadow", "no user \"\"", "/etc/passwd"),
            ("odd", "no user \"odd\"", "/etc/passwd"),
            ("-1", "no user \"-1\"", "/etc/passwd"),
            ("99999999999", "no user \"99999999999\"", "/etc/passwd"),
            ("proxy:squid", "no group \"squid\"", "/etc/group"),
            ("proxy:", "no group \"\"", "/etc/group"),
        ] {
            let unknown = User::parse(wanted, PASSWD, GROUPS).unwrap_err();
            assert_eq!(
                (unknown.what.as_str(), unknown.place),
                (what, place),
                "{wanted}"
            );
        }
    }
}
