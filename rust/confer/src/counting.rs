//! What comes of one source of RTP packets (`virtoll_generator::reception`), window by window, and on beyond a leap of its
//! numbers.

use virtoll_generator::reception::{Leaped, Place, Received, Reception};

#[derive(Debug)]
pub struct Counting {
    clock_hz: u32,
    reception: Reception,
    /// Of the window.
    received: Received,
}

impl Counting {
    pub fn new(clock_hz: u32) -> Self {
        Counting {
            clock_hz,
            reception: Reception::new(clock_hz),
            received: Received::default(),
        }
    }

    /// A packet came; whether it brings something.
    pub fn packet(&mut self, number: u16, timestamp: u32, came_ns: i64, in_window: bool) -> bool {
        let window = in_window.then_some(&mut self.received);
        let place = self.reception.packet(number, timestamp, came_ns, window);
        self.is_of_use(place)
    }

    /// The same of one that was asked for again.
    pub fn repaired(&mut self, number: u16, in_window: bool) -> bool {
        let window = in_window.then_some(&mut self.received);
        let place = self.reception.repaired(number, window);
        self.is_of_use(place)
    }

    /// What is counted goes on from where the source leaped to.
    fn is_of_use(&mut self, place: Result<Place, Leaped>) -> bool {
        match place {
            Ok(place) => place != Place::Useless,
            Err(Leaped) => {
                self.reception = Reception::new(self.clock_hz);
                true
            }
        }
    }

    /// Of the window's packets, those that came.
    pub fn had(&self) -> u64 {
        self.received.had()
    }

    /// The window is over: what came of it, and its jitter, if there is one. What comes from now on counts anew.
    pub fn end_window(&mut self) -> (Received, Option<u64>) {
        let jitter_ns = self.reception.jitter_ns();
        self.reception.renew();
        (std::mem::take(&mut self.received), jitter_ns)
    }
}
