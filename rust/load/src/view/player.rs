//! What a player makes of media that come: a buffer, a start-up delay, stalls. It knows no protocol and no clock of its
//! own; media time and time are nanoseconds.
//!
//! Play begins when `startup_ns` of media are there (or all of them). From then on the play head moves as time does; a
//! *stall* begins where it reaches the end of what has come, and ends when `resume_ns` are ahead of it (or all the
//! rest). Both moments are computed, not noticed: how late the generator looks changes nothing of them.
//!
//! A viewer that waits for `patience_ns`, at the start or in a stall, gives up.
//!
//! Unpaced there is no play head: what comes is watched at once, and a viewer is done when the last byte has come.

/// How a player plays.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub paced: bool,
    pub startup_ns: i64,
    pub resume_ns: i64,
    /// How far ahead of the play head it reads.
    pub buffer_ns: i64,
    pub patience_ns: i64,
}

const REFILL_NS: i64 = 500_000_000;

impl Rules {
    /// How much is played between two times that a viewer reads whose buffer has been full.
    pub fn refill_ns(&self) -> i64 {
        REFILL_NS.min(self.buffer_ns / 4)
    }
}

/// What viewers did within a window, in nanoseconds, all of them together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    pub from_ns: i64,
    pub until_ns: i64,
    /// Joined, and not playing yet.
    pub starting_ns: i64,
    pub playing_ns: i64,
    pub stalled_ns: i64,
    /// Media played; unpaced: media that came.
    pub media_ns: i64,
    /// Stalls that began within it.
    pub stalls: u64,
    /// The most media that came to one viewer at once.
    pub most_ns: i64,
}

impl Watched {
    pub fn within(from_ns: i64, until_ns: i64) -> Self {
        Watched {
            from_ns,
            until_ns,
            ..Watched::default()
        }
    }

    pub fn holds(&self, at_ns: i64) -> bool {
        (self.from_ns..self.until_ns).contains(&at_ns)
    }

    /// The part of a stretch that lies within it.
    pub fn part_ns(&self, from_ns: i64, until_ns: i64) -> i64 {
        (until_ns.min(self.until_ns) - from_ns.max(self.from_ns)).max(0)
    }

    pub fn add(&mut self, other: &Watched) {
        self.starting_ns += other.starting_ns;
        self.playing_ns += other.playing_ns;
        self.stalled_ns += other.stalled_ns;
        self.media_ns = self.media_ns.saturating_add(other.media_ns);
        self.stalls += other.stalls;
        self.most_ns = self.most_ns.max(other.most_ns);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Playing,
    Stalled,
}

/// What a viewer is up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Watching,
    /// It has played all there is.
    Finished,
    /// It has waited for too long.
    GaveUp,
}

#[derive(Clone, Debug)]
pub struct Player {
    rules: Rules,
    state: State,
    /// When its state, or (unpaced, once it plays) the last media, came.
    since_ns: i64,
    /// All before this has been told.
    told_ns: i64,
    /// Media that came, and that the play head is at by `told_ns`.
    got_ns: i64,
    head_ns: i64,
    /// The most that was ahead of the play head since it was last asked for.
    peak_ns: i64,
    is_whole: bool,
    /// It may be whole: only what comes, or does not, will tell.
    may_be_whole: bool,
}

impl Player {
    pub fn new(rules: Rules, now_ns: i64) -> Self {
        Player {
            rules,
            state: State::Starting,
            since_ns: now_ns,
            told_ns: now_ns,
            got_ns: 0,
            head_ns: 0,
            peak_ns: 0,
            is_whole: false,
            may_be_whole: false,
        }
    }

    /// Whether what came may be all there is. If so, running dry is no stall until more comes, and then it was one; or
    /// until the viewer's patience is at its end.
    pub fn may_be_whole(&mut self, may_be: bool) {
        self.may_be_whole = may_be;
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether play has begun, and when.
    pub fn has_started(&self) -> bool {
        self.state != State::Starting
    }

    pub fn is_playing(&self) -> bool {
        self.state == State::Playing
    }

    /// Media that came so far.
    pub fn got_ns(&self) -> i64 {
        self.got_ns
    }

    /// Media ahead of the play head, by when it was last told the time.
    pub fn ahead_ns(&self) -> i64 {
        self.got_ns - self.head_ns
    }

    /// The most that was ahead of the play head since this was last called.
    pub fn peak_ns(&mut self) -> i64 {
        let ahead_ns = self.ahead_ns();
        std::mem::replace(&mut self.peak_ns, ahead_ns)
    }

    /// How much less than `before_ns` was ahead at the most since `peak_ns` was called: what a server that sends less than
    /// is played takes of a buffer, long before there is a stall. None: all has come, and the buffer empties as it should.
    pub fn fallen_ns(&self, before_ns: i64) -> Option<i64> {
        let may_end = self.is_whole || self.may_be_whole;
        (!may_end).then(|| before_ns - self.peak_ns)
    }

    /// When, if nothing comes, no more than this will be ahead of the play head; None: not before something comes.
    pub fn at_most_ahead_ns(&self, ahead_ns: i64) -> Option<i64> {
        let over_ns = self.ahead_ns() - ahead_ns;
        match self.state {
            _ if over_ns <= 0 => Some(self.told_ns),
            State::Playing if self.rules.paced => Some(self.told_ns + over_ns),
            _ => None,
        }
    }

    /// Whether all before `at_ns` is told. Of one that ran dry at what may be the end it is not before that is known,
    /// whatever time it is.
    pub fn is_told(&self, at_ns: i64) -> bool {
        self.told_ns >= at_ns
    }

    /// It is `now_ns`.
    pub fn advance(&mut self, mut now_ns: i64, watched: &mut Watched) {
        let from_ns = self.told_ns;
        if self.may_be_whole && self.rules.paced && self.state == State::Playing {
            let dry_ns = from_ns + self.ahead_ns();
            if now_ns.saturating_sub(dry_ns) < self.rules.patience_ns {
                now_ns = now_ns.min(dry_ns); // what followed is told when it is known
            }
        }
        if now_ns <= from_ns {
            return;
        }
        self.told_ns = now_ns;
        match self.state {
            State::Starting => watched.starting_ns += watched.part_ns(from_ns, now_ns),
            State::Stalled => watched.stalled_ns += watched.part_ns(from_ns, now_ns),
            State::Playing if !self.rules.paced => {
                watched.playing_ns += watched.part_ns(from_ns, now_ns);
            }
            State::Playing => {
                let dry_ns = from_ns + self.ahead_ns();
                let played_ns = watched.part_ns(from_ns, dry_ns.min(now_ns));
                watched.playing_ns += played_ns;
                watched.media_ns += played_ns;
                self.head_ns += dry_ns.min(now_ns) - from_ns;
                if dry_ns < now_ns && !self.is_whole {
                    (self.state, self.since_ns) = (State::Stalled, dry_ns);
                    watched.stalls += u64::from(watched.holds(dry_ns));
                    watched.stalled_ns += watched.part_ns(dry_ns, now_ns);
                }
            }
        }
    }

    /// So much more media has come; `is_whole`: and that is all there is.
    pub fn media(&mut self, now_ns: i64, media_ns: i64, is_whole: bool, watched: &mut Watched) {
        self.is_whole |= is_whole && self.may_be_whole;
        self.may_be_whole = false;
        self.advance(now_ns, watched);
        self.got_ns = self.got_ns.saturating_add(media_ns); // a server says how long a segment is
        self.is_whole |= is_whole;
        if watched.holds(now_ns) {
            watched.most_ns = watched.most_ns.max(media_ns);
        }
        if !self.rules.paced {
            self.head_ns = self.got_ns;
            if watched.holds(now_ns) {
                watched.media_ns = watched.media_ns.saturating_add(media_ns);
            }
            if self.got_ns >= self.rules.startup_ns || self.is_whole {
                self.state = State::Playing;
            }
            if media_ns > 0 && self.state == State::Playing {
                self.since_ns = now_ns;
            }
            return;
        }
        self.peak_ns = self.peak_ns.max(self.ahead_ns());
        let wanted_ns = match self.state {
            State::Starting => self.rules.startup_ns,
            State::Stalled => self.rules.resume_ns,
            State::Playing => return,
        };
        if self.ahead_ns() >= wanted_ns || self.is_whole {
            (self.state, self.since_ns) = (State::Playing, now_ns);
        }
    }

    pub fn status(&self) -> Status {
        if self.is_whole && self.ahead_ns() == 0 {
            Status::Finished
        } else if self
            .waits_since_ns()
            .is_some_and(|since_ns| self.told_ns.saturating_sub(since_ns) >= self.rules.patience_ns)
        {
            Status::GaveUp
        } else {
            Status::Watching
        }
    }

    /// When its status changes, if nothing comes.
    pub fn changes_ns(&self) -> i64 {
        let dry_ns = self.told_ns.saturating_add(self.ahead_ns());
        match self.waits_since_ns() {
            _ if self.is_whole && self.ahead_ns() == 0 => self.told_ns,
            Some(since_ns) => since_ns.saturating_add(self.rules.patience_ns),
            None if self.is_whole => dry_ns,
            None => dry_ns.saturating_add(self.rules.patience_ns),
        }
    }

    fn waits_since_ns(&self) -> Option<i64> {
        let waits = !self.rules.paced || self.state != State::Playing;
        waits.then_some(self.since_ns)
    }
}

#[cfg(test)]
#[path = "player_tests.rs"]
mod tests;
