//! What a viewer does in its turn, and how viewers come and go.

use std::os::fd::OwnedFd;

use super::*;

impl<'a> Worker<'a> {
    /// Do the next thing that a viewer wants; None: and then ask it again.
    pub(super) fn step(
        &mut self,
        index: usize,
        now_ns: i64,
        read_bytes: &mut usize,
    ) -> Result<Option<Turn>, Failed> {
        let place = &mut self.places[index];
        let Some(view) = &mut place.view else {
            return Ok(None);
        };
        if view.pause.is_some() {
            if let Some(turn) = self.rest(index, now_ns) {
                return Ok(Some(turn));
            }
        } else if let Some(turn) = self.watch(index, now_ns) {
            return Ok(Some(turn));
        }
        let place = &mut self.places[index];
        let Some(view) = &mut place.view else {
            return Ok(None);
        };
        place.mode = Mode::Open;
        if !place.connection.is_sent() {
            let turn = place.connection.send();
            let is_reset = matches!(turn, Some(Turn::Failed(Failure::Reset)));
            if is_reset && view.protocol.reset() {
                place.connection.close();
                return Ok(None);
            }
            if is_reset && view.protocol.may_close() {
                place.connection.says_no_more();
                return Ok(None);
            }
            return Ok(turn);
        }
        let mut now = Now {
            ns: now_ns,
            player: &mut view.player,
            watched: &mut self.tally.watched,
            seen: &mut self.tally.seen,
        };
        let want = view.protocol.want(&mut now);
        if matches!(want, Want::Idle(_)) && place.connection.has_ended {
            place.connection.close();
            return Ok(view.protocol.closed(&mut now).err().map(Turn::Failed));
        }
        self.notice(index, now_ns);
        let place = &mut self.places[index];
        match want {
            Want::Connect => {
                self.held(index);
                return self.connect(index);
            }
            Want::Bind(pairs) => return self.bind(index, pairs),
            Want::Fail(failure) => return Ok(Some(Turn::Failed(failure))),
            Want::Datagram {
                socket,
                port,
                bytes,
            } => {
                let to = (*self.spec.target.address.ip(), port);
                let _ = place.sockets.send(socket, to, &bytes); // the next report tells as much
            }
            Want::Send(request) => {
                self.held(index);
                let place = &mut self.places[index];
                // It closed after its last answer, and did not say that it would.
                let view = place.view.as_mut().filter(|_| place.connection.has_ended);
                if view.is_some_and(|view| view.protocol.reset()) {
                    place.connection.close();
                } else {
                    (place.connection.unsent, place.connection.sent) = (request, 0);
                }
            }
            Want::Say(said) => {
                self.held(index);
                let place = &mut self.places[index];
                if !place.connection.has_ended {
                    (place.connection.unsent, place.connection.sent) = (said, 0);
                }
            }
            Want::Read(most) => return Ok(self.read(index, most, read_bytes)),
            Want::Pause(until_ns) => {
                place.mode = Mode::Paused;
                return Ok(Some(Turn::Waits(until_ns)));
            }
            Want::Idle(until_ns) => {
                place.mode = Mode::Idle;
                return Ok(Some(Turn::Waits(until_ns)));
            }
            Want::Nothing => {
                place.connection.close();
                return Ok(Some(Turn::Waits(i64::MAX)));
            }
        }
        Ok(None)
    }

    /// What becomes of a viewer by time alone; None: it watches. It becomes so at its own time, and not when it is looked
    /// at: what it did just before the end of a window is of that window.
    fn watch(&mut self, index: usize, now_ns: i64) -> Option<Turn> {
        let view = self.places[index].view.as_mut()?;
        let at_ns = now_ns.min(view.player.changes_ns());
        view.player.advance(at_ns, &mut self.tally.watched);
        match view.player.status() {
            Status::Finished => Some(Turn::Left(at_ns, None)),
            Status::GaveUp => Some(Turn::Left(at_ns, Some(Failure::Timeout))),
            Status::Watching if now_ns >= view.leaves_ns => Some(Turn::Left(view.leaves_ns, None)),
            Status::Watching => None,
        }
    }

    fn connect(&mut self, index: usize) -> Result<Option<Turn>, Failed> {
        self.places[index].connection.close();
        self.tally.connects += u64::from(self.tells_of(sys::now_ns()));
        let fd = sys::connect_within(&self.address, self.spec.receive_bytes);
        let fd = fd.and_then(|fd| sys::no_delay(&fd).map(|()| fd)); // as players do
        let fd = match fd {
            Ok(fd) => fd,
            Err(error) if is_own_limit(&error) => return Err(Failed::own_limit(&error)),
            Err(error) => return Ok(Some(Turn::Failed(kind_of(&error)))),
        };
        let added = self.epoll.add(&fd, INTEREST, sys::tag(index, &fd));
        added.map_err(|error| Failed::system("epoll_ctl", &error))?;
        self.places[index].connection.fd = Some(fd);
        Ok(None)
    }

    /// Sockets for datagrams. Their events come again while there is something to read.
    fn bind(&mut self, index: usize, pairs: usize) -> Result<Option<Turn>, Failed> {
        let (sockets, ports) = Sockets::bind(pairs).map_err(|error| Failed::own_limit(&error))?;
        for fd in sockets.all() {
            let added = self.epoll.add(fd, EPOLLIN as u32, sys::tag(index, fd));
            added.map_err(|error| Failed::system("epoll_ctl", &error))?;
        }
        let place = &mut self.places[index];
        place.sockets = sockets;
        if let Some(view) = &mut place.view {
            view.protocol.bound(ports);
        }
        Ok(None)
    }

    /// Take what came over one of a viewer's sockets, if it watches still. Whoever else sends to it is a stray.
    pub(super) fn on_datagrams(&mut self, index: usize, raw_fd: RawFd) -> Result<(), Failed> {
        if let Some(Turn::Left(at_ns, failure)) = self.watch(index, sys::now_ns()) {
            return self.leave(index, at_ns, failure);
        }
        let place = &mut self.places[index];
        let (Some(socket), Some(view)) = (place.sockets.position(raw_fd), &mut place.view) else {
            return Ok(());
        };
        let count = self.batch.receive(&place.sockets.all()[socket]);
        let real_ns = sys::real_ns();
        let mut now = Now {
            ns: sys::now_ns(),
            player: &mut view.player,
            watched: &mut self.tally.watched,
            seen: &mut self.tally.seen,
        };
        let mut told = Ok(());
        for number in 0..count.unwrap_or(0) {
            let datagram = self.batch.get(number);
            let dropped = place.sockets.dropped(socket, datagram.drops);
            now.count(|seen| seen.rtp.dropped += dropped);
            if datagram.from != *self.spec.target.address.ip() {
                now.count(|seen| seen.rtp.strays += 1);
            } else if told.is_ok() {
                let came = Came {
                    stamp_ns: datagram.stamp_ns,
                    at_ns: datagram.came_ns(now.ns, real_ns),
                };
                told = view
                    .protocol
                    .datagram(socket, datagram.bytes, came, &mut now);
            }
        }
        let at_ns = now.ns;
        now.count(|seen| seen.reads += 1);
        self.notice(index, at_ns);
        if let Err(failure) = told {
            return self.leave(index, at_ns, Some(failure));
        }
        self.arm(index, i64::MAX);
        Ok(())
    }

    fn read(&mut self, index: usize, most: usize, read_bytes: &mut usize) -> Option<Turn> {
        if *read_bytes >= TURN_BYTES {
            return Some(Turn::Unread);
        }
        let place = &mut self.places[index];
        let (Some(view), Some(fd)) = (&mut place.view, &place.connection.fd) else {
            return Some(Turn::Failed(Failure::Reset));
        };
        if place.connection.is_drained {
            return Some(Turn::Waits(i64::MAX));
        }
        let buffer = &mut self.buffer[..most.min(BUFFER_BYTES)];
        let received = sys::receive(fd, buffer);
        let full_bytes = match self.spec.receive_bytes as usize / FULL_PART {
            0 => BUFFER_BYTES,
            bytes => bytes.min(BUFFER_BYTES),
        };
        let is_full = received.as_ref().is_ok_and(|count| *count >= full_bytes);
        // What came may have waited for this look.
        let mut now = Now {
            ns: sys::now_ns(),
            player: &mut view.player,
            watched: &mut self.tally.watched,
            seen: &mut self.tally.seen,
        };
        let told = match received {
            Ok(0) => {
                let told = view.protocol.closed(&mut now);
                place.connection.fd = None;
                told
            }
            Ok(count) => {
                *read_bytes += count;
                // An event will tell of more, and of an end that is not known yet.
                place.connection.is_drained = count < buffer.len() && !place.connection.has_ended;
                now.count(|seen| seen.reads += 1);
                view.protocol.take(&buffer[..count], &mut now)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                return Some(Turn::Waits(i64::MAX));
            }
            Err(error) => match kind_of(&error) {
                Failure::Reset if view.protocol.reset() => {
                    place.connection.close();
                    Ok(())
                }
                Failure::Reset if view.protocol.may_close() => {
                    place.connection.fd = None;
                    view.protocol.closed(&mut now)
                }
                kind => Err(kind),
            },
        };
        let at_ns = now.ns;
        if is_full {
            self.held(index); // the server may have been kept from sending more
        }
        self.notice(index, at_ns); // what was right before it failed may have been enough
        told.err().map(Turn::Failed)
    }

    /// What a viewer says, or begins to play by, or fails by, had waited for this thread, and no longer than since the
    /// last of these. So had a full buffer, for which the server waited.
    pub(super) fn held(&mut self, index: usize) {
        let now_ns = sys::now_ns();
        let held_ns = self.away.held_ns(now_ns);
        if let Some(view) = self.places[index].view.as_mut() {
            if view.began_ns.is_none() {
                view.late_ns += held_ns.min(now_ns - view.held_at_ns).max(0);
                view.held_at_ns = now_ns;
            }
        }
    }

    /// Whether play has begun meanwhile.
    fn notice(&mut self, index: usize, at_ns: i64) {
        let has_begun = |view: &View| view.began_ns.is_none() && view.player.has_started();
        if self.places[index].view.as_ref().is_some_and(has_begun) {
            self.held(index);
            if let Some(view) = &mut self.places[index].view {
                view.began_ns = Some(at_ns);
                if let Some(stays_ns) = view.stays_ns {
                    view.leaves_ns = view.leaves_ns.min(at_ns.saturating_add(stays_ns));
                }
                self.tally.begun(at_ns);
                if view.order == self.order {
                    self.starting -= 1;
                    self.tally.started(view.due_ns, at_ns, view.late_ns);
                }
                if self.has_paused() {
                    self.pause(index, at_ns); // the others have
                }
            }
        }
    }

    pub(super) fn join(&mut self, index: usize, now_ns: i64) {
        let spec = self.spec;
        let due_ns = self.places[index].due_ns;
        let is_told = self.tells_of(due_ns);
        // Who is told of stays, and is waited for; who gathered leaves where another comes anew.
        let leaves_ns = match is_told {
            true => i64::MAX,
            false => self.anew_ns(index, due_ns),
        };
        let number = self.places[index].number as u64;
        let protocol: Box<dyn Protocol + 'a> = match self.asked {
            Asked::File(file) => Box::new(Progressive::new(file, number)),
            Asked::Rtmp(played) => Box::new(Rtmp::new(played, number)),
            Asked::Segmented(stream) => {
                Box::new(Segmented::new(stream, self.library.clone(), number))
            }
            Asked::Live(source) => Box::new(LowLatency::new(source, self.library.clone())),
            Asked::Rtsp(source) => {
                let seed = self.places[index].random.below(u64::MAX);
                Box::new(Rtsp::new(source, seed))
            }
        };
        let place = &mut self.places[index];
        let random = &mut place.random;
        let stays_ns = spec
            .stay_ns
            .map(|mean_ns| random.exponential(mean_ns as f64) as i64);
        place.view = Some(View {
            protocol,
            player: Player::new(spec.rules(), now_ns),
            due_ns: place.due_ns,
            late_ns: now_ns - place.due_ns,
            held_at_ns: now_ns,
            order: if is_told { self.order } else { 0 },
            stays_ns,
            leaves_ns,
            began_ns: None,
            ahead_ns: None,
            pause: None,
        });
        let gone_ns = place.gone_ns.take().unwrap_or(now_ns);
        self.tally.gone_ns += self.tally.watched.part_ns(gone_ns, now_ns);
        if is_told {
            self.tally.joins += 1;
            self.starting += 1;
        }
    }

    /// A viewer goes: as it should, or because of a failure. Another comes in its place.
    pub(super) fn leave(
        &mut self,
        index: usize,
        at_ns: i64,
        failure: Option<Failure>,
    ) -> Result<(), Failed> {
        if let (Some(_), Some(own)) = (failure, self.library.borrow().lacks_room()) {
            return Err(own); // it was not the server that failed
        }
        self.held(index); // by time alone it may have given up while nobody looked
        let Some(view) = self.part(index, at_ns) else {
            return Ok(());
        };
        let refused = view.protocol.refused();
        let was_asked = view.pause.as_ref().is_some_and(|pause| pause.is_busy);
        if let Some(began_ns) = view.began_ns {
            let of_ns = if was_asked { began_ns } else { at_ns };
            self.tally.left(of_ns, failure, refused);
        } else if view.order == self.order {
            self.starting -= 1;
            self.tally
                .not_started(at_ns, view.late_ns, failure, refused);
        }
        let never_began = view.is_absent(self.order);
        let anew_ns = self.anew_ns(index, at_ns);
        let place = &mut self.places[index];
        place.never_began = never_began;
        place.due_ns = match failure {
            None => at_ns,
            Some(_) => {
                place.gone_ns = Some(at_ns);
                at_ns.saturating_add(self.spec.rest_ns).min(anew_ns)
            }
        };
        let due_ns = place.due_ns;
        self.arm(index, due_ns);
        Ok(())
    }

    /// Let a viewer say its last, and close what it had open.
    pub(super) fn part(&mut self, index: usize, at_ns: i64) -> Option<View<'a>> {
        let place = &mut self.places[index];
        let mut view = place.view.take()?;
        self.busy -= usize::from(view.pause.as_ref().is_some_and(|pause| pause.is_busy));
        let mut now = Now {
            ns: at_ns,
            player: &mut view.player,
            watched: &mut self.tally.watched,
            seen: &mut self.tally.seen,
        };
        if let Some(farewell) = view.protocol.leave(&mut now) {
            place.connection.say_last(farewell);
        }
        place.connection.close();
        place.sockets = Sockets::default();
        Some(view)
    }

    /// Have a viewer's turn no later than `until_ns`, or than something becomes of it by itself. While what it said has not
    /// gone it is asked for nothing, whatever it would wake for: a turn would change nothing, and the next be due at once.
    pub(super) fn arm(&mut self, index: usize, until_ns: i64) {
        let place = &mut self.places[index];
        let due_ns = match &place.view {
            Some(View {
                pause: Some(pause), ..
            }) => until_ns.min(pause.changes_ns(self.spec.player.patience_ns)),
            Some(view) => {
                let is_sent = place.connection.is_sent();
                let wakes_ns = is_sent.then(|| view.protocol.wakes_ns());
                until_ns
                    .min(view.player.changes_ns())
                    .min(wakes_ns.unwrap_or(i64::MAX))
                    .min(view.leaves_ns)
            }
            None => until_ns,
        };
        if due_ns < place.armed_ns {
            place.armed_ns = due_ns;
            self.timers.push(Reverse((due_ns, index)));
        }
    }
}

impl Connection {
    fn close(&mut self) {
        *self = Connection::default();
    }

    fn is_sent(&self) -> bool {
        self.sent == self.unsent.len()
    }

    /// Nobody takes what was to be sent; what the server said before is read.
    fn says_no_more(&mut self) {
        (self.unsent, self.sent) = (Vec::new(), 0);
        (self.has_ended, self.is_drained) = (true, false);
    }

    /// Send this after whatever was sent whole, if there is room.
    fn say_last(&mut self, bytes: Vec<u8>) {
        if self.is_sent() {
            (self.unsent, self.sent) = (bytes, 0);
            self.send();
        }
    }

    /// Send what of a request has not gone yet.
    fn send(&mut self) -> Option<Turn> {
        let fd: &OwnedFd = match &self.fd {
            Some(fd) => fd,
            None => return Some(Turn::Failed(Failure::Reset)),
        };
        match sys::send(fd, &self.unsent[self.sent..]) {
            Ok(sent) => {
                self.sent += sent;
                None
            }
            // An event will tell of room.
            Err(error) if error.kind() == ErrorKind::WouldBlock => Some(Turn::Waits(i64::MAX)),
            Err(error) => Some(Turn::Failed(kind_of(&error))),
        }
    }
}
