use proptest::prelude::*;

use super::*;
use crate::noise::noise;
use crate::rtmp::write::{self, Head};

/// A message as it comes out: its beginning too.
type Came = (Message, Vec<u8>);

fn read(chunks: &mut Chunks, mut input: &[u8]) -> Result<Vec<Came>, Failure> {
    let mut came = Vec::new();
    while let Some(message) = chunks.next(&mut input)? {
        came.push((message, chunks.held().to_vec()));
    }
    assert!(input.is_empty(), "all that there is was taken");
    Ok(came)
}

fn all(input: &[u8]) -> Result<Vec<Came>, Failure> {
    read(&mut Chunks::default(), input)
}

fn message(kind: u8, timestamp: u32, length: usize) -> Message {
    Message {
        kind,
        timestamp,
        length,
    }
}

/// As a server writes it, with a whole header.
fn written(chunks: u8, kind: u8, timestamp: u32, payload: &[u8], chunk_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let head = Head {
        chunks,
        kind,
        stream: 1,
        timestamp,
    };
    write::message(&mut out, head, payload, chunk_bytes);
    out
}

#[test]
fn a_message_with_a_whole_header_is_read() {
    let input = [
        0x04, 0x00, 0x03, 0xe8, 0x00, 0x00, 0x03, 0x08, 1, 0, 0,
        0, // stream 4, 1000 ms, 3 bytes of audio
        0xaf, 0x01, 0x02,
    ];
    assert_eq!(
        all(&input),
        Ok(vec![(message(8, 1000, 3), vec![0xaf, 1, 2])])
    );
}

#[test]
fn headers_of_all_formats_tell_what_has_changed() {
    let input = [
        &[0x04, 0, 0x03, 0xe8, 0, 0, 1, 8, 1, 0, 0, 0, b'a'][..],
        &[0x44, 0, 0, 23, 0, 0, 2, 8, b'b', b'b'], // 23 ms later, two bytes
        &[0x84, 0, 0, 24, b'c', b'c'],             // 24 ms later, as long
        &[0xc4, b'd', b'd'],                       // the same again
        &[0x06, 0, 0, 5, 0, 0, 0, 9, 1, 0, 0, 0],  // of another stream: empty
        &[0xc4, b'e', b'e'],
    ]
    .concat();
    let told: Vec<_> = all(&input)
        .unwrap()
        .into_iter()
        .map(|(message, _)| message)
        .collect();
    let right = [
        message(8, 1000, 1),
        message(8, 1023, 2),
        message(8, 1047, 2),
        message(8, 1071, 2),
        message(9, 5, 0),
        message(8, 1095, 2),
    ];
    assert_eq!(told, right);
}

#[test]
fn after_a_whole_timestamp_the_same_is_the_difference() {
    let input = [
        &[0x04, 0, 0x03, 0xe8, 0, 0, 1, 8, 1, 0, 0, 0, b'a'][..],
        &[0xc4, b'b'],
    ]
    .concat();
    assert_eq!(all(&input).unwrap()[1].0.timestamp, 2000);
}

#[test]
fn numbers_of_chunk_streams_take_one_two_or_three_bytes() {
    let tail = [0, 0, 7, 0, 0, 1, 8, 1, 0, 0, 0, b'x'];
    for basic in [&[0x3f][..], &[0x00, 0x00], &[0x01, 0xff, 0x01]] {
        let again: Vec<u8> = std::iter::once(basic[0] | 0xc0)
            .chain(basic[1..].iter().copied())
            .collect();
        let input = [basic, &tail, &again, b"y"].concat();
        let came = all(&input).unwrap();
        assert_eq!((came.len(), came[1].0), (2, message(8, 14, 1)), "{basic:?}");
    }
}

#[test]
fn timestamps_beyond_three_bytes_are_extended_in_every_chunk() {
    let payload = [7; 300];
    for timestamp in [0xff_fffe, 0xff_ffff, 0x1234_5678] {
        let input = written(6, kind::VIDEO, timestamp, &payload, 128);
        let came = all(&input).unwrap();
        assert_eq!(came, [(message(9, timestamp, 300), vec![7; MEDIA_MAX])]);
        let extended = if timestamp < 0xff_ffff { 0 } else { 4 };
        assert_eq!(input.len(), 12 + 300 + 2 + 3 * extended);
    }
}

#[test]
fn messages_of_several_streams_are_taken_apart() {
    let video = written(6, kind::VIDEO, 40, &[1; 200], 128);
    let audio = written(4, kind::AUDIO, 23, b"sound", 128);
    let input = [&video[..12 + 128], &audio, &video[12 + 128..]].concat();
    let came = all(&input).unwrap();
    assert_eq!(came[0], (message(8, 23, 5), b"sound".to_vec()));
    assert_eq!(came[1].0, message(9, 40, 200));
}

#[test]
fn the_server_sets_the_size_of_its_chunks_and_gives_messages_up() {
    let mut input = Vec::new();
    write::control(&mut input, kind::SET_CHUNK_SIZE, &[4096]);
    input.extend(written(6, kind::VIDEO, 0, &[1; 4000], 4096));
    input.extend(&written(6, kind::VIDEO, 40, &[2; 5000], 4096)[..12 + 4096]);
    write::control(&mut input, kind::ABORT, &[6]);
    input.extend(written(6, kind::VIDEO, 80, &[3; 10], 4096));
    let told: Vec<_> = all(&input)
        .unwrap()
        .into_iter()
        .map(|(message, _)| message)
        .collect();
    assert_eq!(told, [message(9, 0, 4000), message(9, 80, 10)]);
}

/// An FLV tag, with its length behind it.
fn tag(kind: u8, timestamp: u32, payload: &[u8]) -> Vec<u8> {
    let mut tag = vec![kind];
    tag.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    tag.extend_from_slice(&timestamp.to_be_bytes()[1..]);
    tag.push(timestamp.to_be_bytes()[0]);
    tag.extend_from_slice(&[0, 0, 0]);
    tag.extend_from_slice(payload);
    tag.extend_from_slice(&(payload.len() as u32 + 11).to_be_bytes());
    tag
}

#[test]
fn an_aggregate_is_the_messages_in_it_from_its_own_timestamp_on() {
    let tags = [
        tag(kind::VIDEO, 500, &[0x17; 300]),
        tag(kind::DATA, 500, b"meta"),
        tag(kind::AUDIO, 523, b"\xaf\x01"),
    ]
    .concat();
    let aggregate = written(5, kind::AGGREGATE, 90_000, &tags, 128);
    let audio = written(4, kind::AUDIO, 7, b"x", 128); // between its chunks
    let input = [&aggregate[..12 + 128], &audio, &aggregate[12 + 128..]].concat();
    let came = all(&input).unwrap();
    let right = [
        (message(8, 7, 1), b"x".to_vec()),
        (message(9, 90_000, 300), vec![0x17; MEDIA_MAX]),
        (message(8, 90_023, 2), b"\xaf\x01".to_vec()),
    ];
    assert_eq!(came, right);
    let cut = written(5, kind::AGGREGATE, 0, &tags[..tags.len() - 1], 128);
    assert_eq!(all(&cut), Err(Failure::Parse));
    assert_eq!(
        all(&written(5, kind::AGGREGATE, 0, &tag(99, 0, b"?"), 128)),
        Err(Failure::Parse)
    );
}

#[test]
fn what_is_no_stream_of_chunks_is_refused() {
    let long_command = written(3, kind::COMMAND, 0, &[0; COMMAND_MAX + 1], 128);
    let many: Vec<u8> = (2..=STREAMS_MAX as u8 + 2)
        .flat_map(|chunks| written(chunks, kind::AUDIO, 0, b"x", 128))
        .collect();
    let within = [
        &written(4, kind::AUDIO, 0, &[0; 200], 128)[..12 + 128],
        &written(4, kind::AUDIO, 0, b"x", 128),
    ]
    .concat();
    let mut no_size = Vec::new();
    write::control(&mut no_size, kind::SET_CHUNK_SIZE, &[0]);
    for wrong in [
        &[0xc4, 0][..],
        &[0x44; 8],
        &long_command,
        &many,
        &within,
        &no_size,
    ] {
        assert_eq!(
            all(wrong),
            Err(Failure::Parse),
            "{:?}",
            &wrong[..wrong.len().min(20)]
        );
    }
}

#[test]
fn whatever_length_a_server_tells_little_is_kept() {
    let mut chunks = Chunks::default();
    let head = [0x06, 0, 0, 0, 0xff, 0xff, 0xff, 9, 1, 0, 0, 0];
    read(&mut chunks, &head).unwrap();
    for _ in 0..10_000 {
        read(&mut chunks, &[0; 128]).unwrap();
        read(&mut chunks, &[0xc6]).unwrap();
    }
    let kept: usize = chunks
        .streams
        .iter()
        .map(|stream| stream.held.capacity())
        .sum();
    assert!(kept <= 2 * MEDIA_MAX, "{kept} bytes");
}

/// A server's messages, and how they are cut and mixed.
fn messages() -> impl Strategy<Value = Vec<(u8, u8, u32, Vec<u8>)>> {
    let kinds = prop::sample::select(vec![kind::AUDIO, kind::VIDEO, kind::DATA, kind::COMMAND]);
    let one = (
        3u8..64,
        kinds,
        any::<u32>(),
        prop::collection::vec(any::<u8>(), 0..600),
    );
    prop::collection::vec(one, 1..20)
}

proptest! {
    #[test]
    fn whatever_the_cuts_the_same_comes_out(
        sent in messages(), size in 1usize..300, cuts in prop::collection::vec(1usize..200, 1..50)
    ) {
        let mut input = Vec::new();
        write::control(&mut input, kind::SET_CHUNK_SIZE, &[size as u32]);
        let mut right = Vec::new();
        for (chunks, kind, timestamp, payload) in &sent {
            let chunks = 3 + chunks % 8;
            input.extend(written(chunks, *kind, *timestamp, payload, size));
            let most = held_most(*kind, payload.len()).unwrap();
            let held = payload[..payload.len().min(most)].to_vec();
            right.push((message(*kind, *timestamp, payload.len()), held));
        }
        prop_assert_eq!(&all(&input).unwrap(), &right);
        let (mut chunks, mut came, mut rest) = (Chunks::default(), Vec::new(), &input[..]);
        for cut in cuts.iter().cycle() {
            let (part, more) = rest.split_at((*cut).min(rest.len()));
            came.extend(read(&mut chunks, part).unwrap());
            rest = more;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(came, right);
    }

    #[test]
    fn whatever_comes_it_does_not_panic_and_keeps_little(
        input in noise([0, 4, 22, 0xc4], 5000),
        cut in 1usize..100
    ) {
        let mut chunks = Chunks::default();
        for part in input.chunks(cut) {
            let mut part = part;
            loop {
                match chunks.next(&mut part) {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(failure) => {
                        prop_assert_eq!(failure, Failure::Parse);
                        return Ok(());
                    }
                }
            }
        }
        prop_assert!(chunks.streams.len() <= STREAMS_MAX);
        let kept = |stream: &Stream| stream.held.len() + stream.tags.held.len();
        prop_assert!(chunks.streams.iter().all(|stream| kept(stream) <= COMMAND_MAX + MEDIA_MAX));
    }
}
