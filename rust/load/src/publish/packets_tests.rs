use proptest::prelude::*;
use rtcp_types::Packet;
use rtp_types::RtpPacket;

use super::*;

const SECOND: i64 = 1_000_000_000;

/// What was said, by the channel.
fn frames(mut said: &[u8]) -> Vec<(u8, &[u8])> {
    let mut frames = Vec::new();
    while let [b'$', channel, high, low, rest @ ..] = said {
        let (payload, rest) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        frames.push((*channel, payload));
        said = rest;
    }
    assert!(said.is_empty());
    frames
}

fn sender(kind: Kind) -> Sender {
    let mut sender = Sender::new(kind, &mut Random(1));
    sender.channels = (4, 5);
    sender
}

fn picture(later_ms: i32, units: &[Vec<u8>]) -> Vec<u8> {
    let mut message = vec![0x17, 1];
    message.extend(&later_ms.to_be_bytes()[1..]);
    for unit in units {
        message.extend((unit.len() as u32).to_be_bytes());
        message.extend(unit);
    }
    message
}

/// The units that packets carry, as whoever receives them puts them together.
fn put_together(packets: &[RtpPacket]) -> Vec<Vec<u8>> {
    let mut units: Vec<Vec<u8>> = Vec::new();
    for packet in packets {
        match packet.payload() {
            [head, part, piece @ ..] if head & 0x1f == FRAGMENT => {
                if part & 0x80 != 0 {
                    units.push(vec![head & 0xe0 | part & 0x1f]);
                }
                units.last_mut().unwrap().extend(piece);
            }
            unit => units.push(unit.to_vec()),
        }
    }
    units
}

#[test]
fn a_picture_is_sent_a_unit_each_and_long_ones_in_fragments() {
    let units = [
        vec![0x06, 1, 2],
        [&[0x65][..], &[7; 2 * PAYLOAD_MAX]].concat(),
    ];
    let (mut sender, mut said) = (sender(Kind::Video), Vec::new());
    let (number, origin) = (sender.number, sender.origin);
    sender.frame(&picture(80, &units), 1000, &mut said);
    let said = frames(&said);
    let packets: Vec<_> = said
        .iter()
        .map(|(_, packet)| RtpPacket::parse(packet).unwrap())
        .collect();
    let heads: Vec<_> = packets
        .iter()
        .map(|packet| packet.payload()[..2].to_vec())
        .collect();
    assert_eq!(heads, [[0x06, 1], [0x7c, 0x85], [0x7c, 0x05], [0x7c, 0x45]]);
    let markers: Vec<_> = packets.iter().map(RtpPacket::marker_bit).collect();
    assert_eq!(markers, [false, false, false, true]);
    for (at, packet) in packets.iter().enumerate() {
        assert_eq!(packet.sequence_number(), number.wrapping_add(at as u16));
        assert_eq!(
            packet.timestamp(),
            origin.wrapping_add(1080 * 90),
            "when it is shown"
        );
        assert_eq!((packet.payload_type(), packet.ssrc()), (96, sender.source));
        assert!(packet.payload_len() <= PAYLOAD_MAX);
    }
    assert!(said.iter().all(|(channel, _)| *channel == 4));
}

#[test]
fn sound_is_sent_a_frame_each_behind_its_size() {
    let (mut sender, mut said) = (sender(Kind::Audio { clock_hz: 48_000 }), Vec::new());
    let sound = [3; 300];
    sender.frame(&[&[0xaf, 1][..], &sound].concat(), 500, &mut said);
    let said = frames(&said);
    let packet = RtpPacket::parse(said[0].1).unwrap();
    assert_eq!(
        packet.payload()[..4],
        [
            0,
            16,
            (300u16 << 3).to_be_bytes()[0],
            (300u16 << 3).to_be_bytes()[1]
        ]
    );
    assert_eq!(packet.payload()[4..], sound);
    assert_eq!(
        (packet.payload_type(), packet.marker_bit(), said.len()),
        (97, true, 1)
    );
    assert_eq!(packet.timestamp(), sender.origin.wrapping_add(24_000));
}

#[test]
fn a_report_tells_the_time_by_both_clocks_and_what_was_sent() {
    let (mut sender, mut random, mut said) = (sender(Kind::Video), Random(2), Vec::new());
    let begun = Begun {
        monotonic_ns: 7 * SECOND,
        real_ns: 1_700_000_000_000_000_000,
    };
    sender.attend(begun, &mut random, 8 * SECOND, &mut said);
    assert!(said.is_empty(), "there is nothing to report of");
    assert_eq!(sender.wakes_ns(), i64::MAX);
    sender.frame(&picture(0, &[vec![0x65, 1, 2]]), 0, &mut said);
    said.clear();
    sender.attend(begun, &mut random, 9 * SECOND + SECOND / 2, &mut said);
    let said = frames(&said);
    let [(channel, report)] = said[..] else {
        panic!("one report, and not {said:?}")
    };
    let mut parts = Compound::parse(report).unwrap();
    let Some(Ok(Packet::Sr(told))) = parts.next() else {
        panic!("a sender report expected")
    };
    assert_eq!(channel, 5);
    assert_eq!(
        told.ntp_timestamp(),
        (1_700_000_002 + 2_208_988_800) << 32 | 1 << 31
    );
    assert_eq!(told.rtp_timestamp(), sender.origin.wrapping_add(225_000));
    assert_eq!(
        (told.ssrc(), told.packet_count(), told.octet_count()),
        (sender.source, 1, 3)
    );
    assert!(matches!(parts.next(), Some(Ok(Packet::Sdes(_)))));
    assert!((10 * SECOND..14 * SECOND).contains(&sender.wakes_ns()));
    let mut more = Vec::new();
    sender.attend(begun, &mut random, sender.wakes_ns() - 1, &mut more);
    assert!(more.is_empty(), "it is not due");
}

proptest! {
    #[test]
    fn whatever_units_are_sent_come_out_again(
        sizes in prop::collection::vec(1usize..5000, 1..8), head in any::<u8>(), later_ms in -4000i32..4000, at_ms in 0i64..1 << 40,
    ) {
        // Of a kind that is no packet's own.
        let head = head & 0xe0 | (1 + (head & 0x1f) % 23);
        let sent: Vec<Vec<u8>> = sizes.iter().map(|size| [&[head][..], &vec![*size as u8; size - 1]].concat()).collect();
        let (mut sender, mut said) = (sender(Kind::Video), Vec::new());
        sender.frame(&picture(later_ms, &sent), at_ms, &mut said);
        let said = frames(&said);
        let packets: Vec<_> = said.iter().map(|(_, packet)| RtpPacket::parse(packet).unwrap()).collect();
        prop_assert_eq!(put_together(&packets), sent);
        prop_assert_eq!(packets.iter().filter(|packet| packet.marker_bit()).count(), 1);
        prop_assert!(packets.last().is_some_and(RtpPacket::marker_bit));
        let timestamp = sender.origin.wrapping_add(((at_ms + i64::from(later_ms)) * 90) as u32);
        prop_assert!(packets.iter().all(|packet| packet.timestamp() == timestamp));
        prop_assert_eq!(sender.packets as usize, packets.len());
    }

    /// A film is looked through before it is sent; and even so.
    #[test]
    fn any_parts_are_borne(parts in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..60)) {
        let message = [&[0x17, 1, 0, 0, 0][..], &parts].concat();
        let mut said = Vec::new();
        sender(Kind::Video).frame(&message, 0, &mut said);
        prop_assert!(frames(&said).len() <= parts.len());
    }
}
