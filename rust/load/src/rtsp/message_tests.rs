use proptest::prelude::*;

use super::*;
use crate::noise::noise;

/// What was seen, as text.
fn told(item: &Item) -> String {
    match item {
        Item::Frame { channel, payload } => format!("{channel}: {payload:?}"),
        Item::Message(message) => format!(
            "{:?} {} {:?} {:?}",
            message.status(),
            message.method(),
            message.field("CSeq"),
            message.body
        ),
    }
}

fn fed<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<String>, Result<(), Failure>, Framer) {
    let (mut framer, mut items) = (Framer::default(), Vec::new());
    for piece in pieces {
        let outcome = framer.feed(piece, |item| {
            items.push(told(&item));
            Ok(())
        });
        if outcome.is_err() {
            return (items, outcome, framer);
        }
    }
    (items, Ok(()), framer)
}

const STREAM: &[u8] =
    b"RTSP/1.0 200 OK\r\nServer: VLC/3.0.24\r\nContent-Length: 3\r\nCseq: 1\r\n\r\nv=0\
$\x00\x00\x02ab$\x01\x00\x00\r\n\r\n\
ANNOUNCE rtsp://h/ RTSP/1.0\nCSeq:7\n\n\
RTSP/1.0 454 Session Not Found\r\nCSeq: 3\r\n\r\n$\x03\x00\x01z";

const ITEMS: [&str; 6] = [
    "Some(200) RTSP/1.0 Some(\"1\") [118, 61, 48]",
    "0: [97, 98]",
    "1: []",
    "None ANNOUNCE Some(\"7\") []",
    "Some(454) RTSP/1.0 Some(\"3\") []",
    "3: [122]",
];

#[test]
fn frames_and_messages_are_cut_out_of_one_stream() {
    let (items, outcome, framer) = fed([STREAM]);
    assert_eq!((items, outcome), (ITEMS.map(String::from).to_vec(), Ok(())));
    assert!(!framer.is_torn());
}

#[test]
fn what_is_no_message_is_told() {
    for bad in [
        "HTTP/1.1 200 OK\r\n\r\n".to_owned(),
        "RTSP/1.0 200 OK\r\nContent-Length: x\r\n\r\n".to_owned(),
        "RTSP/1.0 200 OK\r\nContent-Length: 70000\r\n\r\n".to_owned(),
        "RTSP/1.0 200 OK\r\n".to_owned() + &"x".repeat(20_000),
        "RTSP/1.0 200 OK\r\n".to_owned() + &"x: y\r\n".repeat(4000),
    ] {
        assert_eq!(fed([bad.as_bytes()]).1, Err(Failure::Parse), "{:.40}", bad);
        assert_eq!(
            fed(bad.as_bytes().chunks(7)).1,
            Err(Failure::Parse),
            "{:.40}",
            bad
        );
    }
}

/// A head of 16 kB that came byte by byte was read through as often.
#[test]
fn of_what_is_torn_nothing_is_looked_at_again() {
    for (torn, lack) in [
        ("RTSP/1.0 200", Lack::Line(0)),
        ("RTSP/1.0 200 OK\r\nCSeq: 7", Lack::Line(17)),
        ("RTSP/1.0 200 OK\r\nCSeq: 7\r\n", Lack::Line(26)),
        (
            "RTSP/1.0 200 OK\r\nContent-Length: 9\r\n\r\nv",
            Lack::Bytes(47),
        ),
        ("$", Lack::Bytes(4)),
        ("$\0\0\x07abc", Lack::Bytes(11)),
    ] {
        for piece_bytes in [1, 7, 100] {
            let (items, outcome, framer) = fed(torn.as_bytes().chunks(piece_bytes));
            assert_eq!((items.len(), outcome), (0, Ok(())));
            assert_eq!(framer.lack, lack, "{torn:?} by {piece_bytes}");
        }
    }
}

#[test]
fn parameters_and_pairs_are_read() {
    let transport = "RTP/AVP;unicast;client_port=4000-4001; server_port=39851-39852;mode=\"PLAY\"";
    assert_eq!(
        parameter(transport, "Server_Port").and_then(pair),
        Some((39851, 39852))
    );
    assert_eq!(parameter(transport, "mode"), Some("PLAY"));
    assert_eq!(parameter(transport, "ssrc"), None);
    assert_eq!(pair("6000"), Some((6000, 6001)));
    assert_eq!(
        (pair("65535"), pair("1-"), pair("x")),
        (None, Some((1, 2)), None)
    );
}

fn pieces<'a>(whole: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut rest = whole;
    let mut pieces = Vec::new();
    for cut in cuts {
        let (piece, left) = rest.split_at((*cut).min(rest.len()));
        pieces.push(piece);
        rest = left;
    }
    pieces.push(rest);
    pieces
}

proptest! {
    #[test]
    fn any_cuts_give_the_same(cuts in prop::collection::vec(0usize..20, 0..60)) {
        let (items, outcome, framer) = fed(pieces(STREAM, &cuts));
        prop_assert_eq!((items, outcome), (ITEMS.map(String::from).to_vec(), Ok(())));
        prop_assert!(!framer.is_torn());
    }

    /// Whatever comes: no panic, the same in any pieces, and no more is kept than a frame or a message.
    #[test]
    fn garbage_is_bounded(
        garbage in noise([b'$', b'\n', 0, 1], 3000),
        begin in prop_oneof![Just(&b""[..]), Just(&b"RTSP/1.0 200 OK\r\n"[..]), Just(STREAM)],
        cuts in prop::collection::vec(0usize..200, 0..40),
    ) {
        let whole = [begin, &garbage].concat();
        let (items, outcome, framer) = fed([&whole[..]]);
        let (others, other, _) = fed(pieces(&whole, &cuts));
        prop_assert_eq!((items, outcome), (others, other));
        prop_assert!(framer.kept_bytes() <= 2 * (MOST_HEAD_BYTES + MOST_BODY_BYTES));
    }
}
