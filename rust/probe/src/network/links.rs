//! The two ways by which `bulk` moves messages: each run is announced, moved, and told by its receiver.

use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};

use super::datagrams::{Receiver, Sender};
use super::meeting::meet;
use super::wire::{Direction, Greeting, Order, Role, Tally};
use super::{stream, Line};
use crate::report::Failed;
use crate::windows::now_ns;

/// What the receiver told of a run.
#[derive(Clone, Copy)]
pub struct Told {
    pub tally: Tally,
    /// By our clock, before we sent what it waited for: the receiver's `now_ns` is later.
    pub asked_ns: u64,
    /// By our clock, when our own part was done: everything sent, or the last received.
    pub done_ns: u64,
}

/// One way to move messages, counted by who receives them.
pub trait Link {
    /// Move so many messages.
    fn pass(&mut self, line: &Line, messages: u64) -> io::Result<Told>;
    /// How much the receiver's tally shows when nothing was lost.
    fn whole(&self, messages: u64) -> u64;
}

/// Over TCP; messages are only how much one send takes.
pub struct Stream {
    stream: TcpStream,
    direction: Direction,
    message: Vec<u8>,
    buffer: Vec<u8>,
}

impl Stream {
    pub fn new(line: &Line, direction: Direction, size_bytes: u64) -> Result<Stream, Failed> {
        let role = match direction {
            Direction::In => Role::Sink,
            Direction::Out => Role::Source,
        };
        Ok(Stream {
            stream: line.connect(Greeting::new(role, size_bytes))?,
            direction,
            message: stream::message(size_bytes as usize),
            buffer: stream::buffer(),
        })
    }
}

impl Link for Stream {
    fn pass(&mut self, _: &Line, messages: u64) -> io::Result<Told> {
        (&self.stream).write_all(&messages.to_le_bytes())?;
        if self.direction == Direction::In {
            stream::send(&self.stream, messages - 1, &self.message)?;
            let asked_ns = now_ns();
            stream::send(&self.stream, 1, &self.message)?;
            let tally = Tally::read(&self.stream)?;
            let done_ns = now_ns();
            return Ok(Told {
                tally,
                asked_ns,
                done_ns,
            });
        }
        let whole = self.whole(messages);
        let tally = stream::receive(&self.stream, whole, &self.message, &mut self.buffer)?;
        let sent = Tally::read(&self.stream)?;
        if sent.count != whole {
            return Err(io::Error::other(format!(
                "the peer sent {} bytes of {whole}",
                sent.count
            )));
        }
        Ok(Told {
            tally,
            asked_ns: tally.now_ns,
            done_ns: tally.end_ns,
        })
    }

    fn whole(&self, messages: u64) -> u64 {
        messages * self.message.len() as u64
    }
}

/// Over UDP, with a connection beside it on which runs are ordered and told.
pub struct Datagrams {
    control: TcpStream,
    socket: UdpSocket,
    direction: Direction,
    sender: Sender,
    receiver: Receiver,
    run: u32,
}

impl Datagrams {
    pub fn new(
        line: &Line,
        direction: Direction,
        size_bytes: u64,
        segmentation: bool,
    ) -> Result<Datagrams, Failed> {
        let greeting = Greeting {
            segmentation,
            ..Greeting::new(Role::Datagrams, size_bytes)
        };
        let (control, socket) = meet(line, greeting)?;
        let size_bytes = size_bytes as usize;
        let sender = Sender::new(
            &socket,
            size_bytes,
            segmentation && direction == Direction::In,
        )
        .map_err(|error| Failed::system("UDP_SEGMENT", &error))?;
        let receiver = Receiver::new(&socket, size_bytes)
            .map_err(|error| Failed::system("SO_RCVTIMEO", &error))?;
        Ok(Datagrams {
            control,
            socket,
            direction,
            sender,
            receiver,
            run: 0,
        })
    }
}

impl Link for Datagrams {
    fn pass(&mut self, line: &Line, messages: u64) -> io::Result<Told> {
        self.run += 1;
        let order = Order {
            run: self.run,
            direction: self.direction,
            count: messages,
        };
        let mut control = &self.control;
        control.write_all(&order.bytes())?;
        if self.direction == Direction::In {
            control.read_exact(&mut [0])?; // the peer is ready
            self.sender.send(&self.socket, self.run, messages)?;
            let asked_ns = now_ns();
            control.write_all(&[1])?; // everything is sent
            let tally = Tally::read(control)?;
            return Ok(Told {
                tally,
                asked_ns,
                done_ns: asked_ns,
            });
        }
        let tally =
            self.receiver
                .receive(&self.socket, self.run, messages, control, line.patience)?;
        let sent = Tally::read(control)?;
        if sent.count != messages {
            return Err(io::Error::other(
                "the peer could not send (its log says why)",
            ));
        }
        Ok(Told {
            tally,
            asked_ns: tally.now_ns,
            done_ns: tally.end_ns,
        })
    }

    fn whole(&self, messages: u64) -> u64 {
        messages
    }
}
