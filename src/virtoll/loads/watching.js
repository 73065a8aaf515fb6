// A browser that watches a room of Janus's VideoRoom: it subscribes to all that is published, also later, and shows it.
// Evaluated in an empty page; `virtoll.watch` begins, `virtoll.told` says how it goes (virtoll.loads.watching reads it).
"use strict";
globalThis.virtoll = (() => {
  const MOST_FEEDS = 1000, KEEP_ALIVE_MS = 25000;
  const FIELDS = [
    "id", "timestamp", "framesDecoded", "framesDropped", "freezeCount", "totalFreezesDuration", "pauseCount",
    "totalPausesDuration", "totalInterFrameDelay", "totalDecodeTime", "frameWidth", "frameHeight", "packetsReceived",
    "packetsLost", "jitter",
  ];
  const feeds = new Map();  // published: its number, and by what name
  const mids = new Map();   // subscribed to: the feed's number, and its place in the session description
  const asked = new Map();  // transactions that nobody has answered yet
  let socket = null, room = 0, session = 0, publisher = 0, subscriber = 0, peer = null, failure = "", number = 0;
  let turn = Promise.resolve();  // one negotiation after another

  const fail = (why) => { failure ||= String(why).slice(0, 100); };
  const guarded = (work) => { turn = turn.then(work).catch((error) => fail(error.message ?? error)); };

  // An answer to a message: of a plugin that is its event, after an acknowledgement.
  function ask(message) {
    return new Promise((resolve, reject) => {
      const transaction = String(++number);
      asked.set(transaction, { resolve, reject });
      socket.send(JSON.stringify({ ...message, transaction, ...(session ? { session_id: session } : {}) }));
    });
  }

  const request = (handle, body, jsep) => ask({ janus: "message", handle_id: handle, body, ...(jsep ? { jsep } : {}) });
  const attach = async () => (await ask({ janus: "attach", plugin: "janus.plugin.videoroom" })).data.id;

  function hear(said) {
    if (said.janus === "ack" || said.janus === "keepalive") return;
    if (said.janus === "hangup" || said.janus === "timeout") return fail("connection lost");
    const data = said.plugindata?.data ?? {};
    const waiting = asked.get(said.transaction);
    asked.delete(said.transaction);
    const error = said.error ?? (data.error_code ? { code: data.error_code, reason: data.error } : null);
    if (error) return waiting ? waiting.reject(new Error(`janus ${error.code} ${error.reason}`)) : undefined;
    if (said.sender === publisher) seen(data);
    if (waiting) waiting.resolve(said);
    // An offer that nobody asked for: what is subscribed to has changed.
    else if (said.jsep?.type === "offer" && said.sender === subscriber) guarded(() => answer(said));
  }

  // Who publishes now, and who has ceased to.
  function seen(data) {
    if (data.videoroom === "destroyed") fail("destroyed");
    const came = (data.publishers ?? []).filter((each) => !feeds.has(each.id) && feeds.size < MOST_FEEDS);
    for (const each of came) feeds.set(each.id, String(each.display ?? "").slice(0, 100));
    const left = [data.leaving, data.unpublished].filter((feed) => feeds.has(feed));
    for (const feed of left) { feeds.delete(feed); mids.delete(feed); }
    if (came.length) guarded(() => subscribe(came.map((each) => ({ feed: each.id }))));
  }

  async function subscribe(streams) {
    streams = streams.filter((each) => feeds.has(each.feed));
    if (!streams.length) return;
    if (subscriber) return answer(await request(subscriber, { request: "update", subscribe: streams }));
    subscriber = await attach();
    await answer(await request(subscriber, { request: "join", ptype: "subscriber", room, streams }));
  }

  async function answer(said) {
    const streams = said.plugindata?.data?.streams ?? [];
    for (const each of streams) if (each.type === "video" && feeds.has(each.feed_id)) mids.set(each.feed_id, each.mid);
    if (!said.jsep) return;
    peer ??= connection();
    await peer.setRemoteDescription(said.jsep);
    await peer.setLocalDescription(await peer.createAnswer());
    await gathered();
    await request(subscriber, { request: "start" }, peer.localDescription);
  }

  function connection() {
    const made = new RTCPeerConnection();
    made.onconnectionstatechange = () => { if (made.connectionState === "failed") fail("connection lost"); };
    made.ontrack = (event) => show(event.track);
    return made;
  }

  const gathered = () => new Promise((resolve) => {
    if (peer.iceGatheringState === "complete") return resolve();
    peer.onicegatheringstatechange = () => { if (peer.iceGatheringState === "complete") resolve(); };
  });

  function show(track) {
    if (track.kind !== "video") return;
    const video = document.createElement("video");
    Object.assign(video, { muted: true, autoplay: true, playsInline: true, width: 320 });
    video.srcObject = new MediaStream([track]);
    document.body.append(video);
  }

  async function enter(display) {
    session = (await ask({ janus: "create" })).data.id;
    setInterval(() => socket.send(JSON.stringify({ janus: "keepalive", session_id: session, transaction: "k" })), KEEP_ALIVE_MS);
    publisher = await attach();
    await request(publisher, { request: "join", ptype: "publisher", room, display });
  }

  return {
    watch(url, number_of_room, display) {
      room = number_of_room;
      socket = new WebSocket(url, "janus-protocol");
      socket.onopen = () => enter(display).catch((error) => fail(error.message));
      socket.onmessage = (event) => hear(JSON.parse(event.data));
      socket.onclose = () => fail("signalling");
    },
    async told() {
      const reports = new Map();
      if (peer) for (const each of (await peer.getStats()).values())
        if (each.type === "inbound-rtp" && each.kind === "video") reports.set(each.mid, each);
      const streams = [...feeds].map(([feed, display]) => {
        const report = reports.get(mids.get(feed));
        const stats = report && Object.fromEntries(FIELDS.map((field) => [field, report[field] ?? null]));
        return { feed, role: display.split(" ").at(-1), stats: stats ?? null };
      });
      return { failure, at_ms: performance.now(), streams };
    },
  };
})();
undefined;
