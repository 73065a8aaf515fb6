//! How orders are carried out: the crowd becomes what is asked for, a window begins, ends, and is told.

use super::*;

impl<'a> Worker<'a> {
    /// Those who are too many leave, and those who are to join are due.
    pub(super) fn begin(&mut self, task: Task) {
        let (from_ns, until_ns) = task.window_ns;
        (self.order, self.phase, self.starting) = (self.order + 1, Phase::Before, 0);
        let have_paused = self.task.as_ref().is_some_and(|task| task.pauses);
        self.tally = Tally::within(from_ns, until_ns);
        self.all_leave(task.viewers);
        if self.places.iter().all(|place| place.view.is_none()) {
            // Not in epoll, whose long waits the kernel ends late on purpose: by a thousandth of their length, or by
            // five of a process that is nice (fs/select.c, `select_estimate_accuracy`).
            sys::sleep_until(task.first_ns - START_DELAY_NS);
        }
        let threads = self.spec.threads;
        let known = self.places.len();
        let new = (self.thread..task.viewers).step_by(threads).skip(known);
        // Who comes after somebody left is somebody else, and draws anew.
        let seed = self.spec.seed.wrapping_add(self.order - 1);
        self.places.extend(new.map(|number| Place {
            number,
            view: None,
            random: Random::derived(seed, number as u64),
            due_ns: i64::MAX,
            gone_ns: None,
            never_began: true,
            connection: Connection::default(),
            sockets: Sockets::default(),
            mode: Mode::Open,
            is_unread: false,
            armed_ns: i64::MAX,
        }));
        for index in known..self.places.len() {
            if let Some(due_ns) = task.join_ns(self.places[index].number) {
                self.places[index].due_ns = due_ns;
                self.arm(index, due_ns);
            }
        }
        self.task = Some(task);
        for index in 0..known {
            if have_paused {
                self.will_go_on(index);
            }
            self.renew(index);
        }
        let plays = |place: &&Place| {
            place
                .view
                .as_ref()
                .is_some_and(|view| view.began_ns.is_some())
        };
        self.tally.begun = self.places.iter().filter(plays).count() as u64;
    }

    /// All of these numbers, or higher ones.
    pub(super) fn all_leave(&mut self, least: usize) {
        let now_ns = sys::now_ns();
        let kept = self
            .places
            .iter()
            .position(|place| place.number >= least)
            .unwrap_or(self.places.len());
        for index in kept..self.places.len() {
            self.part(index, now_ns);
        }
        self.places.truncate(kept);
        self.unread.retain(|index| *index < kept);
    }

    /// What was ahead of those who came first, while they were few, is no measure of what is ahead of all: a segment comes
    /// the later the more there are, and then as often as it is played.
    pub(super) fn forget_smaller_crowd(&mut self, now_ns: i64) {
        let gathered_ns = self.task.as_mut().map(|task| &mut task.gathered_ns);
        if gathered_ns.is_some_and(|at_ns| at_ns.take_if(|at_ns| *at_ns <= now_ns).is_some()) {
            let views = self
                .places
                .iter_mut()
                .filter_map(|place| place.view.as_mut());
            for player in views.map(|view| &mut view.player) {
                player.advance(now_ns, &mut self.tally.watched);
                player.peak_ns();
            }
        }
    }

    pub(super) fn begin_window(&mut self, now_ns: i64) {
        let from_ns = self.tally.watched.from_ns;
        if matches!(self.phase, Phase::Before) && now_ns >= from_ns {
            self.phase = Phase::Within(CpuTime::of_thread());
            let views = self
                .places
                .iter_mut()
                .filter_map(|place| place.view.as_mut());
            for view in views.filter(|view| view.began_ns.is_some()) {
                view.player.advance(from_ns, &mut self.tally.watched);
                view.ahead_ns = Some(view.player.peak_ns());
            }
        }
    }

    /// Have who is there, or is to come, leave in time for who comes anew.
    fn renew(&mut self, index: usize) {
        let anew_ns = self.anew_ns(index, i64::MIN);
        let place = &mut self.places[index];
        match &mut place.view {
            Some(view) => view.leaves_ns = view.leaves_ns.min(anew_ns),
            None => place.due_ns = place.due_ns.min(anew_ns),
        }
        self.arm(index, anew_ns);
    }

    /// When somebody comes anew here, later than then; `i64::MAX`: nobody does.
    pub(super) fn anew_ns(&self, index: usize, at_ns: i64) -> i64 {
        let number = self.places[index].number;
        let anew_ns = self.task.as_ref().and_then(|task| task.anew_ns(number));
        anew_ns
            .filter(|anew_ns| *anew_ns > at_ns)
            .unwrap_or(i64::MAX)
    }

    /// Whether a join that is due then, or what comes of it, is told of by the order.
    pub(super) fn tells_of(&self, due_ns: i64) -> bool {
        let is_open = matches!(self.phase, Phase::Before | Phase::Within(_));
        let task = self.task.as_ref();
        is_open && task.is_some_and(|task| due_ns > task.tells_after_ns)
    }

    /// All time until its end is told.
    pub(super) fn end_window(&mut self, now_ns: i64) {
        let until_ns = self.tally.watched.until_ns;
        let cpu = match self.phase {
            Phase::Within(cpu) if now_ns >= until_ns => cpu,
            _ => return,
        };
        self.phase = Phase::Drains;
        self.tally.cpu = CpuTime::of_thread().since(cpu);
        for place in &mut self.places {
            match &mut place.view {
                Some(view) => {
                    view.player.advance(until_ns, &mut self.tally.watched);
                    self.tally.absent += u64::from(view.is_absent(self.order));
                    let before_ns = view.ahead_ns.take();
                    if let Some(ns) = before_ns.and_then(|ns| view.player.fallen_ns(ns)) {
                        self.tally.standing += 1;
                        self.tally.fallen_ns = self.tally.fallen_ns.saturating_add(ns);
                    }
                    view.protocol.end_window(&mut Now {
                        ns: until_ns,
                        player: &mut view.player,
                        watched: &mut self.tally.watched,
                        seen: &mut self.tally.seen,
                    });
                }
                None => {
                    self.tally.absent += u64::from(place.never_began);
                    if let Some(gone_ns) = &mut place.gone_ns {
                        self.tally.gone_ns += self.tally.watched.part_ns(*gone_ns, until_ns);
                        *gone_ns = until_ns.max(*gone_ns); // told; another may come while others are waited for
                    }
                }
            }
        }
        self.all_pause(now_ns);
    }

    /// Tell of the window, when nobody is waiting for play to begin of whom it is to tell; who pauses for nothing; and of
    /// who had run dry it is known whether that was the end, or a stall of the window.
    pub(super) fn tell(&mut self) {
        let is_idle = self.starting == 0 && self.busy == 0;
        if matches!(self.phase, Phase::Drains) && is_idle && self.all_is_known() {
            self.phase = Phase::Between;
            let next = Tally::within(i64::MAX, i64::MAX);
            let _ = self.reports.send(std::mem::replace(&mut self.tally, next));
        }
    }

    fn all_is_known(&self) -> bool {
        let until_ns = self.tally.watched.until_ns;
        let mut views = self.places.iter().filter_map(|place| place.view.as_ref());
        views.all(|view| view.player.is_told(until_ns))
    }
}
