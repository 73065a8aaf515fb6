use super::*;
use proptest::prelude::*;

const VALUE_BYTES: u64 = 40;
const GET: Expected = Expected::Value { bytes: VALUE_BYTES };

/// What Redis answers to a GET of `key`.
fn bulk(key: u64, value_bytes: u64) -> Vec<u8> {
    let mut reply = format!("${value_bytes}\r\n").into_bytes();
    reply.extend_from_slice(head(&name(key), value_bytes));
    let length = reply.len() + (value_bytes - value_bytes.min(16)) as usize;
    reply.resize(length, b'x');
    reply.extend_from_slice(b"\r\n");
    reply
}

/// However the bytes are torn, the outcome is the same.
fn parse(expected: Expected, keys: &[u64], text: &[u8]) -> (Progress, Option<Failure>, u64) {
    let parsed = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut replies = Replies::new(expected, keys.to_vec());
        let mut progress = Progress::More;
        for piece in pieces {
            progress = replies.take(piece);
            if matches!(progress, Progress::Broken(_)) {
                break; // nothing is read of such a connection any more
            }
        }
        (progress, replies.problem, replies.value_bytes)
    };
    let whole = parsed(&mut std::iter::once(text));
    for at in 1..text.len() {
        let torn = parsed(&mut [&text[..at], &text[at..]].into_iter());
        assert_eq!((torn.0, torn.1), (whole.0, whole.1), "torn at {at}");
        let small = parsed(&mut text.chunks(at));
        assert_eq!((small.0, small.1), (whole.0, whole.1), "in pieces of {at}");
    }
    whole
}

fn problem_of(expected: Expected, text: &[u8]) -> Option<Failure> {
    let (progress, problem, _) = parse(expected, &[7], text);
    assert_eq!(progress, Progress::Done, "{}", text.escape_ascii());
    problem
}

fn is_broken(expected: Expected, text: &[u8]) -> bool {
    matches!(parse(expected, &[7, 8], text).0, Progress::Broken(_))
}

#[test]
fn a_name_holds_its_number_and_a_short_value_the_end_of_the_name() {
    assert_eq!(&name(0), b"key:000000000000");
    assert_eq!(&name(123_456_789_012), b"key:123456789012");
    assert_eq!(head(&name(42), 3), b"042");
    assert_eq!(head(&name(42), 16), b"key:000000000042");
    assert_eq!(head(&name(42), 1000), b"key:000000000042");
}

#[test]
fn replies_are_done_when_there_are_as_many_as_keys() {
    let text = [bulk(3, VALUE_BYTES), bulk(1, VALUE_BYTES)].concat();
    assert_eq!(
        parse(GET, &[3, 1], &text),
        (Progress::Done, None, 2 * VALUE_BYTES)
    );
    assert_eq!(parse(GET, &[3, 1, 1], &text).0, Progress::More);
    assert!(matches!(parse(GET, &[3], &text).0, Progress::Broken(_)));
    assert_eq!(
        parse(Expected::Done, &[3, 1], b"+OK\r\n+OK\r\n"),
        (Progress::Done, None, 0)
    );
}

#[test]
fn what_is_wrong_is_told_apart() {
    assert_eq!(problem_of(GET, &bulk(7, VALUE_BYTES)), None);
    assert_eq!(problem_of(GET, b"$-1\r\n"), Some(Failure::Status));
    let error = b"-WRONGTYPE Operation against a key\r\n";
    assert_eq!(problem_of(GET, error), Some(Failure::Status));
    assert_eq!(
        problem_of(Expected::Done, b"-OOM command not allowed\r\n"),
        Some(Failure::Status)
    );
    for other in [0, 1, VALUE_BYTES - 1, VALUE_BYTES + 1] {
        assert_eq!(problem_of(GET, &bulk(7, other)), Some(Failure::Length));
    }
    let other = problem_of(GET, &bulk(8, VALUE_BYTES));
    assert_eq!(other, Some(Failure::Content), "another key's value");
}

#[test]
fn the_first_wrong_reply_of_a_round_is_the_one_that_is_told() {
    let text = [b"$-1\r\n".to_vec(), bulk(7, 3), bulk(9, VALUE_BYTES)].concat();
    let (progress, problem, _) = parse(GET, &[5, 7, 9], &text);
    assert_eq!((progress, problem), (Progress::Done, Some(Failure::Status)));
    let mut replies = Replies::new(GET, vec![5]);
    let _ = replies.take(b"-ERR max number of clients reached\r\n");
    assert_eq!(
        replies.error.as_deref(),
        Some(&b"ERR max number of clients reached"[..])
    );
    replies.reset();
    assert_eq!(
        (replies.problem, &replies.error, replies.value_bytes),
        (None, &None, 0)
    );
}

#[test]
fn what_a_command_does_not_bring_is_no_reply() {
    for text in [
        &b"HTTP/1.1 200 OK\r\n"[..],
        b":1\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"+OK\n",
        b"\r\n",
        b"$\r\n",
        b"$+3\r\n",
        b"$-2\r\n",
        b"$ 3\r\n",
        b"$3x\r\nabc\r\n",
        b"$536870913\r\n",
        b"$99999999999999999999999999999999\r\n",
        b"$3\r\nabcd\r\n",
        b"$3\r\nabc\n\r",
    ] {
        assert!(is_broken(GET, text), "{}", text.escape_ascii());
        assert!(is_broken(Expected::Done, text), "{}", text.escape_ascii());
    }
    assert!(is_broken(GET, b"+OK\r\n"), "to a GET");
    assert!(is_broken(Expected::Done, &bulk(7, 3)), "to a SET");
}

#[test]
fn a_line_and_a_length_are_bounded() {
    let mut replies = Replies::new(GET, vec![7]);
    let endless = [b'-'; 1000];
    let pieces_read = (0..).find(|_| matches!(replies.take(&endless), Progress::Broken(_)));
    assert_eq!(pieces_read, Some(LINE_MAX_BYTES / endless.len()));
    assert!(replies.torn_line.len() <= LINE_MAX_BYTES);
    let mut replies = Replies::new(GET, vec![7]);
    assert_eq!(replies.take(b"$536870912\r\n"), Progress::More, "512 MiB");
    assert_eq!(replies.problem, Some(Failure::Length));
}

#[test]
fn a_value_may_be_thrown_away_once_its_head_has_been_seen() {
    let mut replies = Replies::new(GET, vec![7]);
    let text = bulk(7, VALUE_BYTES);
    let head_ends = 5 + NAME_BYTES;
    for at in 0..head_ends {
        assert_eq!(replies.skippable(), 0, "after {at} bytes");
        assert_eq!(replies.take(&text[at..=at]), Progress::More);
    }
    assert_eq!(replies.skippable(), VALUE_BYTES - NAME_BYTES as u64);
    assert_eq!(replies.skipped(replies.skippable()), Progress::More);
    assert_eq!(replies.skippable(), 0);
    assert_eq!(replies.take(b"\r\n"), Progress::Done);
    assert_eq!((replies.problem, replies.value_bytes), (None, VALUE_BYTES));
}

#[test]
fn an_end_of_the_stream_is_told_by_where_it_comes() {
    let after = |text: &[u8]| {
        let mut replies = Replies::new(GET, vec![7, 7]);
        let _ = replies.take(text);
        replies.cut_off()
    };
    let value = bulk(7, VALUE_BYTES);
    assert_eq!(after(b""), Some(Failure::Reset));
    assert_eq!(after(b"$4"), Some(Failure::Reset));
    assert_eq!(after(&value[..10]), Some(Failure::Length));
    assert_eq!(after(&value[..value.len() - 1]), Some(Failure::Length));
    assert_eq!(after(&value), Some(Failure::Reset));
    let told = after(b"-ERR max number of clients reached\r\n");
    assert_eq!(told, Some(Failure::Status), "what it said before it went");
}

/// What stands in streams of Redis' replies, true and false.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        &b"+OK\r\n"[..],
        b"$-1\r\n",
        b"-ERR x\r\n",
        b":1\r\n",
        b"$3\r\n",
        b"$40\r\n",
        b"\r\n",
        b"\r",
        b"$",
        b"key:000000000007",
    ];
    prop_oneof![
        proptest::sample::select(words.map(<[u8]>::to_vec).to_vec()),
        proptest::collection::vec(any::<u8>(), 0..8),
        (0..10u64, 0..50u64).prop_map(|(key, value_bytes)| bulk(key, value_bytes)),
    ]
}

proptest! {
    #[test]
    fn whatever_comes_is_read_the_same_in_any_pieces(
        fragments in proptest::collection::vec(fragment(), 0..8),
        keys in proptest::collection::vec(0..10u64, 1..4),
        set: bool,
    ) {
        let expected = if set { Expected::Done } else { GET };
        parse(expected, &keys, &fragments.concat());
    }

    #[test]
    fn what_redis_brings_is_correct(
        keys in proptest::collection::vec(0..1_000_000_000_000u64, 1..20), value_bytes in 1..100u64,
    ) {
        let text: Vec<u8> = keys.iter().flat_map(|key| bulk(*key, value_bytes)).collect();
        let mut replies = Replies::new(Expected::Value { bytes: value_bytes }, keys.clone());
        prop_assert_eq!(replies.take(&text), Progress::Done);
        prop_assert_eq!(replies.problem, None);
        prop_assert_eq!(replies.value_bytes, value_bytes * keys.len() as u64);
    }
}
