use std::collections::BTreeMap;

use proptest::prelude::*;
use str0m::Event;
use virtoll_generator::datagrams::Batch;
use virtoll_generator::sys;

use super::super::codec::Codec;
use super::super::film::tests::ivf_of;
use super::super::film::Film;
use super::super::frames::{Frames, Shown, KEY};
use super::super::peer::Peer;
use super::super::sending::Sending;
use super::super::spec::{tests::spec, ConferSpec, Role};
use super::super::tally::Tally;
use super::super::tests::shared;
use super::*;

const MS: i64 = 1_000_000;
const START_CODE: [u8; 4] = [0, 0, 0, 1];

/// An access unit: a picture of so many bytes, and before a key frame's its parameter sets.
fn frame(is_key: bool, length: usize, fill: u8) -> Vec<u8> {
    let mut frame = Vec::new();
    if is_key {
        frame.extend([&START_CODE[..], &[0x67, 0x42, 0xc0, 0x1e, 0xd9]].concat());
        frame.extend([&START_CODE[..], &[0x68, 0xce, 0x3c, 0x80]].concat());
    }
    frame.extend(START_CODE);
    frame.push(if is_key { 0x65 } else { 0x41 });
    frame.extend(vec![fill | 0x80; length - 1]);
    frame
}

/// So many frames a second, for so many; the first of each so many is a key frame, and longer.
pub fn ivf(per_s: u32, frames: u32, group: u32) -> Vec<u8> {
    let frame = |index: u32| match index.is_multiple_of(group) {
        true => frame(true, 3000, index as u8),
        false => frame(false, 700, index as u8),
    };
    ivf_of(b"H264", per_s, (0..frames).map(frame).collect())
}

#[test]
fn a_key_frame_has_its_parameter_sets() {
    let whole = frame(true, 100, 3);
    assert_eq!(is_key(&whole), Some(true));
    assert_eq!(is_key(&frame(false, 100, 3)), Some(false));
    assert_eq!(is_key(&whole[9..]), Some(false), "without its SPS");
    assert_eq!(is_key(&whole[..17]), Some(false), "without its picture");
    assert_eq!(is_key(&[0, 0, 1, 0x65]), Some(false));
    for none in [&[][..], &[0, 0, 1], b"no stream", &[0, 0, 1, 0x1f, 0]] {
        assert_eq!(is_key(none), None, "{none:?}");
    }
    let film = Film::parsed(&ivf(10, 20, 5)).unwrap();
    assert_eq!(film.codec, Codec::H264);
    assert_eq!(
        [0, 1, 5, 16].map(|index| film.key_from(index)),
        [0, 5, 5, 0]
    );
}

#[test]
fn a_payload_tells_what_it_has_of_a_key_frame() {
    let key_of = |payload: &[u8]| part(payload, false).map(|part| part.key);
    assert_eq!(key_of(&[0x67, 1]), Some(SEQUENCE));
    assert_eq!(key_of(&[0x68, 1]), Some(PICTURE));
    assert_eq!(key_of(&[0x65, 1]), Some(INTRA));
    assert_eq!(key_of(&[0x41, 1]), Some(0));
    assert_eq!(
        key_of(&[0x78, 0, 2, 0x67, 1, 0, 1, 0x68]),
        Some(SEQUENCE | PICTURE)
    );
    assert_eq!(
        key_of(&[0x78, 0, 1, 0x67, 0, 1, 0x68, 0, 1, 0x65]),
        Some(KEY)
    );
    assert_eq!(key_of(&[0x7c, 0x85, 1]), Some(INTRA), "the first part");
    assert_eq!(key_of(&[0x7c, 0x05, 1]), Some(0), "another one");
    assert_eq!(key_of(&[0x7c, 0x45, 1]), Some(0), "the last");
    assert_eq!(key_of(&[0x7c, 0x81, 1]), Some(0), "of no key frame");
    assert_eq!(part(&[0x41], true), Some(Part { ends: true, key: 0 }));
    for wrong in [
        &[][..],
        &[0x60],
        &[0x7f],
        &[0x79, 0, 1, 0, 1, 0x65],
        &[0x78, 0],
        &[0x78, 0, 0],
        &[0x78, 0, 3, 0x67, 1],
        &[0x78, 0, 1, 0x67, 0],
        &[0x7c],
        &[0x7c, 0xc5, 1],
        &[0x7c, 0x9c, 1],
    ] {
        assert_eq!(part(wrong, true), None, "{wrong:?}");
    }
}

/// Payloads of a key frame: its parameter sets, and its picture in so many parts.
fn payloads(parts: usize) -> Vec<Vec<u8>> {
    let mut payloads = vec![vec![0x78, 0, 1, 0x67, 0, 1, 0x68]];
    payloads.extend((0..parts).map(|at| match at {
        0 => vec![0x7c, START | IDR, 1],
        at if at + 1 == parts => vec![0x7c, END | IDR, 1],
        _ => vec![0x7c, IDR, 1],
    }));
    payloads
}

fn given(frames: &mut Frames, payloads: &[Vec<u8>], numbers: impl Iterator<Item = usize>) -> Shown {
    let mut sum = Shown::default();
    for number in numbers {
        let part = part(&payloads[number], number + 1 == payloads.len()).unwrap();
        let shown = frames.packet(100 + number as u64, part, 0);
        sum = Shown {
            frames: sum.frames + shown.frames,
            keys: sum.keys + shown.keys,
        };
    }
    sum
}

#[test]
fn a_key_frame_is_shown_once_all_of_it_has_come_however_long_it_is() {
    let payloads = payloads(2300); // a second of 20 Mbit/s
    let last = payloads.len() - 1;
    let mut frames = Frames::default();
    let shown = given(
        &mut frames,
        &payloads,
        (0..=last).filter(|number| *number != 600),
    );
    assert_eq!(shown, Shown::default());
    let shown = given(&mut frames, &payloads, 600..601);
    assert_eq!(shown, Shown { frames: 1, keys: 1 });
}

#[test]
fn without_parameter_sets_or_picture_nothing_is_begun_with() {
    let mut payloads = payloads(3);
    payloads[0] = vec![0x67, 1];
    let shown = given(&mut Frames::default(), &payloads, 0..4);
    assert_eq!(shown, Shown::default(), "no PPS");
    payloads[0] = vec![0x68, 1];
    let shown = given(&mut Frames::default(), &payloads, 0..4);
    assert_eq!(shown, Shown::default(), "no SPS");
    let sets_alone = [vec![0x78, 0, 1, 0x67, 0, 1, 0x68], vec![0x41, 1]];
    let shown = given(&mut Frames::default(), &sets_alone, 0..2);
    assert_eq!(shown, Shown::default(), "no IDR picture");
}

/// A stream of bytes of what came in packets (RFC 6184, 5.6 to 5.8).
fn joined<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut stream = Vec::new();
    for payload in payloads {
        match payload[0] & 0x1f {
            STAP_A => {
                let mut rest = &payload[1..];
                while let Some((length, after)) = rest.split_first_chunk::<2>() {
                    let (unit, after) = after.split_at(u16::from_be_bytes(*length).into());
                    stream.extend([&START_CODE, unit].concat());
                    rest = after;
                }
            }
            FU_A => {
                if payload[1] & START != 0 {
                    stream.extend(START_CODE);
                    stream.push(payload[0] & 0xe0 | payload[1] & 0x1f);
                }
                stream.extend(&payload[2..]);
            }
            _ => stream.extend([&START_CODE, payload].concat()),
        }
    }
    stream
}

/// Payloads, and their markers, by their numbers, of a film's first frames as one participant gets them from another.
fn sent(film: Film, frames: usize) -> BTreeMap<u64, (Vec<u8>, bool)> {
    let spec = ConferSpec {
        codec: Codec::H264,
        ..spec()
    };
    let roles = [Role {
        name: "webcam".into(),
        film: Some(film),
        watches: false,
    }];
    let shared = shared(&spec, &roles);
    let (mut now_ns, clock) = (sys::now_ns(), shared.common.clock);
    let peer = Peer::new(&shared.common, true, now_ns).unwrap();
    let film = roles[0].film.as_ref().unwrap();
    let (mut sending, offer) = Sending::new(peer, 0, film, 0).unwrap();
    let mut taking = Peer::new(&shared.common, false, now_ns).unwrap();
    let answer = taking.answer(&offer).unwrap();
    sending.peer.answered(&answer).unwrap();
    let (mut batch, mut tally, mut came) = (Batch::default(), Tally::new(1), BTreeMap::new());
    let is_all = |came: &BTreeMap<u64, (Vec<u8>, bool)>| {
        let numbers = came.keys().next().zip(came.keys().last());
        let is_whole = numbers.is_some_and(|(first, last)| last - first + 1 == came.len() as u64);
        is_whole && came.values().filter(|(_, marker)| *marker).count() > frames
    };
    while !is_all(&came) {
        now_ns += MS;
        for peer in [&mut sending.peer, &mut taking] {
            for index in 0..batch.receive(&peer.sockets().all()[0]).unwrap_or(0) {
                let datagram = batch.get(index);
                peer.take(&datagram, now_ns, now_ns, &clock).unwrap();
                while let Some(event) = peer.next(&clock, now_ns).unwrap() {
                    if let Event::RtpPacket(packet) = event {
                        let payload = (packet.payload.to_vec(), packet.header.marker);
                        came.insert(*packet.seq_no, payload);
                    }
                }
            }
            if peer.wake_ns <= now_ns {
                peer.on_timer(clock.at(now_ns)).unwrap();
                while let Some(_event) = peer.next(&clock, now_ns).unwrap() {}
            }
        }
        sending.drive(now_ns, &shared, &mut tally).unwrap();
    }
    came
}

#[test]
fn what_is_sent_in_packets_is_joined_to_what_was_encoded() {
    let came = sent(Film::parsed(&ivf(50, 50, 5)).unwrap(), 12);
    let film = Film::parsed(&ivf(50, 50, 5)).unwrap();
    let packets: Vec<_> = came.into_values().collect();
    let frames = packets.split_inclusive(|(_, marker)| *marker);
    for (index, (packets, frame)) in frames.zip(&film.frames).enumerate().take(12) {
        let payloads = packets.iter().map(|(payload, _)| &payload[..]);
        assert_eq!(joined(payloads), *frame.bytes, "{index}");
        let parts = packets
            .iter()
            .map(|(payload, marker)| part(payload, *marker));
        let key = parts.fold(0, |key, part| key | part.unwrap().key);
        assert_eq!(key == KEY, frame.is_key, "{index}");
        let first = part(&packets[0].0, false).unwrap();
        assert_eq!(
            first.key != 0,
            frame.is_key,
            "a key frame begins with its sets"
        );
    }
}

proptest! {
    #[test]
    fn any_payload_is_told_or_refused(
        head in prop::sample::select(vec![0x78u8, 0x7c, 0x65, 0x00]), rest in prop::collection::vec(any::<u8>(), 0..40)
    ) {
        let payload = [&[head][..], &rest].concat();
        let _ = part(&payload, true);
        let _ = part(&rest, false);
        let _ = is_key(&rest);
    }

    #[test]
    fn a_cut_payload_shows_nothing_that_the_whole_one_does_not(
        units in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..6), 1..5), cut in 0usize..30
    ) {
        let mut payload = vec![0x78];
        for unit in &units {
            payload.extend((unit.len() as u16).to_be_bytes());
            payload.extend(unit);
        }
        let whole = part(&payload, true).map(|part| part.key);
        let heads = units.iter().try_fold(0, |key, unit| Some(key | key_of(unit[0])?));
        prop_assert_eq!(whole, heads);
        if let (Some(whole), Some(cut)) = (whole, part(&payload[..cut.min(payload.len())], true)) {
            prop_assert_eq!(cut.key & !whole, 0);
        }
    }
}
