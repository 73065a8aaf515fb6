//! `virtoll-load redis`: rounds of GETs or SETs.
//!
//! One *request* of the load is a round: `pipeline` commands sent at once, answered by as many replies. All that is
//! counted (offered, completed, failures, histogram, log) are rounds, and a latency is that of a whole round; so work in
//! commands is `pipeline` times what the report tells. A round with one wrong reply has failed.
//!
//! Keys are `key:000000000000` and so on, drawn uniformly; each connection has a generator of its own. A value begins
//! with its key's name and goes on with `x`. `body_bytes` counts the bytes of values, got or set.

use std::net::SocketAddrV4;

use serde::Deserialize;
use virtoll_generator::random::Random;
use virtoll_generator::Failed;

use crate::dialogue::{Ask, Dialogue, Judged, Place};
use crate::resp::{head, name, Expected, Replies, NAME_BYTES};

/// What a round, and each thread's copy of it, may hold.
const ROUND_MAX_BYTES: u64 = 64 << 20;
const PIPELINE_MAX: usize = 10_000;
/// As many as the twelve digits tell apart.
const KEYS_MAX: u64 = 1_000_000_000_000;

/// What stands in the specification beside the load itself.
#[derive(Clone, Debug, Deserialize)]
pub struct RedisAsk {
    pub target: Server,
    pub commands: Commands,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub address: SocketAddrV4,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commands {
    pub command: Command,
    /// Of each value; `get` expects it, and what `fill` has set.
    pub value_bytes: u64,
    pub keys: u64,
    /// Commands a round.
    pub pipeline: usize,
    /// The same seed draws the same keys.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    Get,
    Set,
}

impl Commands {
    pub fn problem(&self) -> Option<&'static str> {
        let round_bytes = self.value_bytes.saturating_mul(self.pipeline as u64);
        if !(1..=PIPELINE_MAX).contains(&self.pipeline) {
            Some("pipeline must be from 1 to ten thousand commands")
        } else if !(1..=KEYS_MAX).contains(&self.keys) {
            Some("keys must be from 1 to 10^12")
        } else if self.value_bytes == 0 {
            Some("value_bytes must be above 0")
        } else if round_bytes > ROUND_MAX_BYTES {
            Some("the values of a round must not be more than 64 MiB: make value_bytes or pipeline smaller")
        } else {
            None
        }
    }

    pub fn expected(&self) -> Expected {
        match self.command {
            Command::Set => Expected::Done,
            Command::Get => Expected::Value {
                bytes: self.value_bytes,
            },
        }
    }
}

/// The bytes of a round, in which keys, and what values begin with, are changed.
pub struct Round {
    pub bytes: Vec<u8>,
    command: Command,
    value_bytes: u64,
    command_bytes: usize,
    key_at: usize,
    value_at: usize,
}

impl Round {
    pub fn new(command: Command, value_bytes: u64, pipeline: usize) -> Self {
        let mut one = match command {
            Command::Get => b"*2\r\n$3\r\nGET\r\n$16\r\n".to_vec(),
            Command::Set => b"*3\r\n$3\r\nSET\r\n$16\r\n".to_vec(),
        };
        let key_at = one.len();
        one.extend_from_slice(&[b'x'; NAME_BYTES]);
        one.extend_from_slice(b"\r\n");
        let mut value_at = 0;
        if command == Command::Set {
            one.extend_from_slice(format!("${value_bytes}\r\n").as_bytes());
            value_at = one.len();
            one.resize(value_at + value_bytes as usize, b'x');
            one.extend_from_slice(b"\r\n");
        }
        Round {
            bytes: one.repeat(pipeline),
            command,
            value_bytes,
            command_bytes: one.len(),
            key_at,
            value_at,
        }
    }

    /// So many of its commands, from the first on.
    pub fn of(&self, commands: usize) -> &[u8] {
        &self.bytes[..commands * self.command_bytes]
    }

    /// Let its commands name these keys, one each.
    pub fn name_keys(&mut self, keys: &[u64]) {
        for (command, key) in self.bytes.chunks_exact_mut(self.command_bytes).zip(keys) {
            let name = name(*key);
            command[self.key_at..self.key_at + NAME_BYTES].copy_from_slice(&name);
            if self.command == Command::Set {
                let head = head(&name, self.value_bytes);
                command[self.value_at..self.value_at + head.len()].copy_from_slice(head);
            }
        }
    }
}

/// One thread's.
pub struct Redis {
    commands: Commands,
    thread: usize,
    round: Round,
    /// Who draws the keys of each connection.
    random: Vec<Random>,
}

impl Ask for RedisAsk {
    type Dialogue = Redis;

    fn problem(&self) -> Option<&'static str> {
        self.commands.problem()
    }

    fn place(&self) -> Result<Place, Failed> {
        Ok(Place {
            address: self.target.address,
            tls: None,
            keep_alive: true,
        })
    }

    fn dialogue(&self, thread: usize) -> Result<Redis, Failed> {
        let Commands {
            command,
            value_bytes,
            pipeline,
            ..
        } = self.commands;
        Ok(Redis {
            commands: self.commands,
            thread,
            round: Round::new(command, value_bytes, pipeline),
            random: Vec::new(),
        })
    }
}

impl Dialogue for Redis {
    type Reply = Replies;

    fn reply(&mut self) -> Replies {
        let number = (self.thread as u64) << 32 | self.random.len() as u64;
        self.random
            .push(Random::derived(self.commands.seed, number));
        Replies::new(self.commands.expected(), vec![0; self.commands.pipeline])
    }

    fn prepare(&mut self, connection: usize, replies: &mut Replies) {
        replies.reset();
        for key in &mut replies.keys {
            *key = self.random[connection].below(self.commands.keys);
        }
        self.round.name_keys(&replies.keys);
    }

    fn request(&self) -> &[u8] {
        &self.round.bytes
    }

    fn judge(&self, replies: &Replies) -> Judged {
        let set_bytes = match self.commands.command {
            Command::Get => 0,
            Command::Set => self.commands.value_bytes * self.commands.pipeline as u64,
        };
        Judged {
            failure: replies.problem,
            status: 0,
            body_bytes: replies.value_bytes + set_bytes,
            keep_alive: true,
        }
    }
}

#[cfg(test)]
#[path = "redis_tests.rs"]
mod tests;
