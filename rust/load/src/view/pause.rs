//! Viewers who pause between windows, while others are measured: who has asked for something gets it, and then asks for
//! nothing until the next order has it go on.

use super::*;

impl Pause {
    /// When its turn comes, if nothing comes before: to go on, or to give up what it waits for.
    pub(super) fn changes_ns(&self, patience_ns: i64) -> i64 {
        match self.is_busy {
            true => self.since_ns.saturating_add(patience_ns),
            false => self.until_ns,
        }
    }
}

impl<'a> Worker<'a> {
    /// Whether all pause, or will as soon as they have begun to play.
    pub(super) fn has_paused(&self) -> bool {
        let is_over = matches!(self.phase, Phase::Drains | Phase::Between);
        is_over && self.task.as_ref().is_some_and(|task| task.pauses)
    }

    /// Those who do not play yet are waited for where that is to be told, and pause then.
    pub(super) fn all_pause(&mut self, now_ns: i64) {
        for index in 0..self.places.len() {
            let view = self.places[index].view.as_ref();
            let is_awaited = |view: &View| view.began_ns.is_none() && view.order == self.order;
            if self.has_paused() && view.is_some_and(|view| !is_awaited(view)) {
                self.pause(index, now_ns);
            }
        }
    }

    pub(super) fn pause(&mut self, index: usize, now_ns: i64) {
        let view = self.places[index].view.as_mut();
        if let Some(view) = view.filter(|view| view.pause.is_none()) {
            let is_busy = !view.protocol.is_idle();
            self.busy += usize::from(is_busy);
            view.pause = Some(Pause {
                since_ns: now_ns,
                is_busy,
                until_ns: i64::MAX,
            });
            self.arm(index, i64::MAX);
        }
    }

    /// By the order that has come: who has paused goes on, and stays so much longer; and where somebody failed before,
    /// another may come.
    pub(super) fn will_go_on(&mut self, index: usize) {
        let place = &mut self.places[index];
        let task = self.task.as_ref();
        let at_ns = task.and_then(|task| task.goes_on_ns(place.number));
        let at_ns = at_ns.unwrap_or(i64::MAX);
        let due_ns = match &mut place.view {
            Some(view) => {
                if let Some(pause) = &mut view.pause {
                    let paused_ns = at_ns.saturating_sub(pause.since_ns);
                    view.leaves_ns = view.leaves_ns.saturating_add(paused_ns);
                    pause.until_ns = at_ns;
                }
                at_ns
            }
            None => {
                place.due_ns = place.due_ns.max(at_ns);
                place.due_ns
            }
        };
        self.arm(index, due_ns);
    }

    /// What a viewer that pauses does; None: what one does that watches, for it waits for something still, or goes on.
    pub(super) fn rest(&mut self, index: usize, now_ns: i64) -> Option<Turn> {
        let place = &mut self.places[index];
        let view = place.view.as_mut()?;
        let pause = view.pause.as_mut()?;
        if now_ns >= pause.until_ns {
            view.player = Player::new(self.spec.rules(), now_ns);
            view.protocol.resume();
            view.pause = None;
            return None;
        }
        if !view.protocol.is_idle() {
            let gives_up = now_ns >= pause.changes_ns(self.spec.player.patience_ns);
            return gives_up.then_some(Turn::Failed(Failure::Timeout));
        }
        self.busy -= usize::from(std::mem::take(&mut pause.is_busy));
        if place.connection.has_ended {
            place.connection = Connection::default();
            view.protocol.reset();
        }
        place.mode = Mode::Idle;
        Some(Turn::Waits(pause.until_ns))
    }
}
