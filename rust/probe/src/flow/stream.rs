//! Both ends of a flow over TCP: messages of one size, the first bytes of each a header, counted as they come.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::counts::Counts;
use super::depart::Way;
use super::wire::{hear, tell, Answer, Header, Order, Ready, END, MOST_ORDER_BYTES};
use crate::network::MOST_BYTES;
use crate::windows::now_ns;

/// What a flow's messages go through. A full one is waited for: a stream loses nothing.
pub struct Messages<'a> {
    stream: &'a TcpStream,
    run: u32,
    message: Vec<u8>,
}

impl Messages<'_> {
    pub fn new<'a>(stream: &'a TcpStream, order: &Order) -> Messages<'a> {
        Messages {
            stream,
            run: order.run,
            message: vec![1; order.size_bytes],
        }
    }

    /// Say that there are no more.
    pub fn end(&mut self) -> io::Result<()> {
        self.depart(END, 0, 0, 1).map(|_| ())
    }
}

impl Way for Messages<'_> {
    fn most(&self) -> u64 {
        1
    }

    fn depart(&mut self, segment: u32, number: u64, at_ns: u64, count: u64) -> io::Result<u64> {
        let header = Header {
            run: self.run,
            segment,
            number,
            at_ns,
        };
        header.write(&mut self.message);
        let mut stream = self.stream;
        stream.write_all(&self.message)?;
        Ok(count)
    }

    fn size_bytes(&self) -> u64 {
        self.message.len() as u64
    }
}

/// The receiver's end: one flow, as its sender orders it on the same connection.
pub fn receive(mut stream: &TcpStream) -> io::Result<()> {
    let order = hear::<Order>(stream, MOST_ORDER_BYTES)?.sound(MOST_BYTES)?;
    let mut message = vec![1; order.size_bytes];
    let mut counts = Counts::new(order);
    tell(stream, &Ready { now_ns: now_ns() })?;
    let mut filled = 0;
    loop {
        let length = match stream.read(&mut message[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let arrival_ns = now_ns();
        filled += length;
        let is_first = filled == length;
        let header = Header::read(&message[..filled]);
        let ends = header.is_some_and(|header| header.segment == END);
        if !ends {
            let at_ns = header.filter(|_| is_first).map(|header| header.at_ns);
            counts.bytes(at_ns, length as u64, arrival_ns);
        }
        if filled < message.len() {
            continue;
        }
        filled = 0;
        match header {
            Some(_) if ends => break,
            Some(header) => counts.message(header, arrival_ns),
            None => counts.wrong(),
        }
    }
    let answer = Answer {
        stamps: "program".to_owned(),
        now_ns: now_ns(),
        ..counts.answer()
    };
    tell(stream, &answer)
}
