use super::*;
use crate::spec::{HttpSpec, RedisSpec};

fn told(change: impl FnOnce(&mut serde_json::Value)) -> serde_json::Value {
    let mut spec = serde_json::json!({
        "target": {"address": "1.2.3.4:6379"},
        "commands": {"command": "get", "value_bytes": 64, "keys": 1000, "pipeline": 16, "seed": 1},
        "threads": 1,
        "loop": {"closed": {"connections": 1, "requests": null, "time_limit_ns": 1}},
        "timeout_ns": 1,
    });
    change(&mut spec);
    spec
}

fn read(change: impl FnOnce(&mut serde_json::Value)) -> Result<RedisSpec, String> {
    let spec: Result<RedisSpec, _> = serde_json::from_str(&told(change).to_string());
    spec.map_err(|error| error.to_string())
        .and_then(|spec| spec.checked().map_err(|Failed(why)| why))
}

#[test]
fn what_cannot_be_asked_is_refused_and_said() {
    assert!(read(|_| ()).is_ok());
    for (field, value, said) in [
        ("pipeline", 0, "pipeline must be from 1"),
        ("pipeline", 10_001, "to ten thousand"),
        ("keys", 0, "keys must be from 1"),
        ("keys", 1_000_000_000_001, "to 10^12"),
        ("value_bytes", 0, "value_bytes must be above 0"),
        ("value_bytes", u64::MAX, "64 MiB"),
        ("value_bytes", (4 << 20) + 1, "64 MiB"),
    ] {
        let why = read(|spec| spec["commands"][field] = value.into()).unwrap_err();
        assert!(why.contains(said), "{field} = {value}: {why}");
    }
    let why = read(|spec| spec["commands"]["command"] = "incr".into()).unwrap_err();
    assert!(why.contains("incr") && why.contains("get"), "{why}");
    let why = read(|spec| spec["threads"] = 0.into()).unwrap_err();
    assert!(why.contains("threads must be above 0"), "{why}");
}

/// The fields of a protocol stand beside the others, and those of the other one do not.
#[test]
fn fields_that_nobody_knows_are_refused_at_every_depth() {
    for (place, name) in [
        ("", "typo"),
        ("", "keep_alive"),
        ("/target", "url"),
        ("/commands", "typo"),
    ] {
        let why = read(|spec| spec.pointer_mut(place).unwrap()[name] = 1.into()).unwrap_err();
        assert!(why.contains(&format!("unknown field `{name}`")), "{why}");
    }
    let http = |name: &str| {
        let mut spec = told(|_| ());
        spec.as_object_mut().unwrap().remove("commands");
        spec["target"]["url"] = "http://a/".into();
        spec["keep_alive"] = true.into();
        spec["expect"] = serde_json::json!({"status": 200, "length_bytes": null});
        spec[name] = 1.into();
        serde_json::from_str::<HttpSpec>(&spec.to_string()).map_err(|error| error.to_string())
    };
    assert!(http("threads").is_ok());
    for name in ["typo", "commands"] {
        let why = http(name).unwrap_err();
        assert!(why.contains(&format!("unknown field `{name}`")), "{why}");
    }
    let why = read(|spec| drop(spec.as_object_mut().unwrap().remove("commands"))).unwrap_err();
    assert!(why.contains("missing field `commands`"), "{why}");
}

fn dialogue(seed: u64, thread: usize) -> Redis {
    let spec = read(|spec| spec["commands"]["seed"] = seed.into()).unwrap();
    spec.ask.dialogue(thread).unwrap()
}

/// The keys of so many rounds of the first connection, then of the second.
fn drawn(seed: u64, thread: usize) -> Vec<u64> {
    let mut redis = dialogue(seed, thread);
    let mut connections = [redis.reply(), redis.reply()];
    let mut keys = Vec::new();
    for (connection, replies) in connections.iter_mut().enumerate() {
        for _ in 0..50 {
            redis.prepare(connection, replies);
            keys.extend_from_slice(&replies.keys);
        }
    }
    keys
}

#[test]
fn keys_are_drawn_by_the_seed_for_each_connection_anew_and_all_over() {
    let keys = drawn(1, 0);
    assert_eq!(keys, drawn(1, 0));
    let (first, second) = keys.split_at(keys.len() / 2);
    assert_ne!(first, second);
    assert_ne!(keys, drawn(2, 0));
    assert_ne!(keys, drawn(1, 1));
    let mut tenths = [0; 10];
    for key in &keys {
        tenths[*key as usize / 100] += 1; // all are below 1000, or this panics
    }
    // 1600 draws: 160 expected in each tenth, and the standard deviation is 12.
    assert!(
        tenths.iter().all(|count| (100..220).contains(count)),
        "{tenths:?}"
    );
}

#[test]
fn a_round_is_as_many_commands_as_redis_reads_them() {
    let mut get = Round::new(Command::Get, 64, 2);
    get.name_keys(&[12, 345]);
    assert_eq!(
        get.bytes,
        b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000012\r\n*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000345\r\n"
    );
    let mut set = Round::new(Command::Set, 18, 1);
    set.name_keys(&[999]);
    set.name_keys(&[1]);
    assert_eq!(
        set.bytes,
        b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000001\r\n$18\r\nkey:000000000001xx\r\n"
    );
    let mut small = Round::new(Command::Set, 2, 2);
    small.name_keys(&[7, 34]);
    assert!(small.bytes.ends_with(b"key:000000000034\r\n$2\r\n34\r\n"));
    assert_eq!(small.of(2), small.bytes);
    assert!(small.of(1).ends_with(b"$2\r\n07\r\n"));
}

#[test]
fn what_a_round_sets_is_what_one_gets() {
    use crate::dialogue::{Progress, Reply};
    for value_bytes in [1, 15, 16, 17, 1000] {
        let mut set = Round::new(Command::Set, value_bytes, 1);
        set.name_keys(&[42]);
        let at = set.value_at - format!("${value_bytes}\r\n").len();
        let expected = Expected::Value { bytes: value_bytes };
        let mut replies = Replies::new(expected, vec![42]);
        assert_eq!(replies.take(&set.bytes[at..]), Progress::Done);
        assert_eq!(replies.problem, None);
    }
}
