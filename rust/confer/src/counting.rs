//! What comes of one source of RTP packets (`virtoll_generator::reception`), window by window, and on beyond a leap of its
//! numbers.

use virtoll_generator::reception::{Leaped, Place, Received, Reception};

#[derive(Debug)]
pub struct Counting {
    /// Faster than its source sends: numbers that leaped farther in their time were not passed.
    most_per_s: u64,
    reception: Reception,
    /// The highest number that was of use, and when it came; None: nothing has come.
    highest: Option<(u64, i64)>,
    /// Of the window.
    received: Received,
}

impl Counting {
    pub fn new(clock_hz: u32, most_per_s: u64) -> Self {
        Counting {
            most_per_s,
            reception: Reception::new(clock_hz),
            highest: None,
            received: Received::default(),
        }
    }

    /// A packet came; whether it brings something. ``number`` counts on beyond 2^16.
    pub fn packet(&mut self, number: u64, timestamp: u32, came_ns: i64, in_window: bool) -> bool {
        let window = in_window.then_some(&mut self.received);
        let short = number as u16;
        let place = self.reception.packet(short, timestamp, came_ns, window);
        self.is_of_use(place, number, came_ns, in_window)
    }

    /// The same of one that was asked for again.
    pub fn repaired(&mut self, number: u64, came_ns: i64, in_window: bool) -> bool {
        let window = in_window.then_some(&mut self.received);
        let place = self.reception.repaired(number as u16, window);
        self.is_of_use(place, number, came_ns, in_window)
    }

    fn is_of_use(
        &mut self,
        place: Result<Place, Leaped>,
        number: u64,
        came_ns: i64,
        in_window: bool,
    ) -> bool {
        match place {
            Ok(Place::Useless) => return false,
            Ok(_) => self.highest = self.highest.max(Some((number, came_ns))),
            Err(Leaped) => self.leap(number, came_ns, in_window),
        }
        true
    }

    /// What is counted goes on from where the source leaped to: two packets have come from there, of which the first was
    /// taken for a stray. After an outage all that could have been sent meanwhile is lost; farther than that leaps a
    /// source that began anew.
    fn leap(&mut self, number: u64, came_ns: i64, in_window: bool) {
        let here = (number, came_ns);
        let (highest, then_ns) = self.highest.replace(here).unwrap_or(here);
        let (passed, since_ns) = (number.saturating_sub(highest), came_ns - then_ns);
        let sendable = (since_ns.max(0) as u64).saturating_mul(self.most_per_s) / 1_000_000_000;
        let is_lost = (2..=sendable).contains(&passed);
        self.reception.leap(number as u16, is_lost, in_window);
        if in_window {
            self.received.strays = self.received.strays.saturating_sub(2);
            self.received.packets += 2;
            self.received.expected += if is_lost { passed } else { 2 };
            self.received.lost += if is_lost { passed - 2 } else { 0 };
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
