use super::*;
use crate::rtmp::media::sent_ns;

pub fn tag(kind: u8, at_ms: u32, payload: &[u8]) -> Vec<u8> {
    let mut tag = vec![kind];
    tag.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    tag.extend_from_slice(&at_ms.to_be_bytes()[1..]);
    tag.push(at_ms.to_be_bytes()[0]);
    tag.extend_from_slice(&[0, 0, 0]);
    tag.extend_from_slice(payload);
    tag.extend_from_slice(&(payload.len() as u32 + 11).to_be_bytes());
    tag
}

pub fn file(tags: &[Vec<u8>]) -> Vec<u8> {
    [&b"FLV\x01\x05\0\0\0\x09\0\0\0\0"[..], &tags.concat()].concat()
}

/// A key frame of two parts, the first of this kind.
fn key_frame(part: u8) -> Vec<u8> {
    [0x17, 1, 0, 0, 0, 0, 0, 0, 2, part, 0xf0, 0, 0, 0, 1, 0x65].to_vec()
}

fn whole() -> Vec<Vec<u8>> {
    vec![
        tag(kind::DATA, 0, b"\x02\0\x0aonMetaData\x08\0\0\0\0\0\0\x09"),
        tag(kind::VIDEO, 0, &[0x17, 0, 0, 0, 0, 1]),
        tag(kind::AUDIO, 0, &[0xaf, 0, 0x12, 0x10]),
        tag(kind::VIDEO, 0, &key_frame(6)),
        tag(kind::AUDIO, 0, &[0xaf, 1, 1]),
        tag(kind::AUDIO, 23, &[0xaf, 1, 2]),
        tag(kind::VIDEO, 40, &[0x27, 1, 0, 0, 0, 1]),
        tag(kind::VIDEO, 80, &[0x17, 2, 0, 0, 0]), // the end
    ]
}

#[test]
fn a_film_is_what_sets_up_its_frames_and_how_long_it_takes() {
    let film = Film::of(file(&whole())).unwrap();
    let told = |frames: &[Frame]| -> Vec<_> {
        frames
            .iter()
            .map(|frame| (frame.kind, frame.at_ms, film.bytes(frame).len()))
            .collect()
    };
    assert_eq!(told(&film.setup), [(9, 0, 6), (8, 0, 4)]);
    assert_eq!(
        told(&film.frames),
        [(9, 0, 16), (8, 0, 3), (8, 23, 3), (9, 40, 6)]
    );
    assert_eq!(
        film.length_ms, 80,
        "the last frame is as long as the one before it"
    );
    let metadata = film.metadata.unwrap();
    assert!(metadata.starts_with(b"\x02\0\x0d@setDataFrame\x02\0\x0aonMetaData"));
}

#[test]
fn key_frames_are_marked_before_their_first_part_but_after_a_delimiter() {
    let mark = b"0123456789abcdef";
    for (part, at) in [(6, 5), (DELIMITER, 11)] {
        let film = Film::of(file(
            &[whole(), vec![tag(kind::VIDEO, 80, &key_frame(part))]].concat(),
        ))
        .unwrap();
        let frame = film.frames.last().unwrap();
        let marked = film.marked(frame, mark, 77).unwrap();
        assert_eq!(frame.mark_at, Some(at));
        assert_eq!(marked[..at], film.bytes(frame)[..at]);
        assert_eq!(marked[marked.len() - (16 - at)..], film.bytes(frame)[at..]);
        assert_eq!(sent_ns(&marked, mark), Some(77));
        assert!(film.marked(&film.frames[1], mark, 77).is_none());
    }
}

#[test]
fn what_is_no_film_is_refused() {
    let whole = whole();
    let back = [&whole[..], &[tag(kind::AUDIO, 20, &[0xaf, 1, 3])]].concat();
    let far = [&whole[..], &[tag(kind::AUDIO, 20_000, &[0xaf, 1, 3])]].concat();
    let cut = file(&whole);
    for (bytes, why) in [
        (b"RIFF".to_vec(), "no FLV file"),
        (file(&[]), "fewer than two frames"),
        (file(&back), "go back"),
        (file(&far), "more than ten seconds"),
        (cut[..cut.len() - 8].to_vec(), "cut off"),
        ([&cut[..], &[kind::VIDEO, 0, 0]].concat(), "cut off"),
        (file(&[tag(31, 0, b"?")]), "neither audio, video nor data"),
    ] {
        let told = Film::of(bytes).unwrap_err();
        assert!(told.contains(why), "{told} for {why}");
    }
    let Failed(told) = Film::read(Path::new("/nowhere/film.flv")).unwrap_err();
    assert!(told.contains("/nowhere/film.flv: No such file"), "{told}");
}
