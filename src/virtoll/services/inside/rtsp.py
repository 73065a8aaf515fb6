"""GStreamer's RTSP server: what `virtoll.services.gst_rtsp` starts inside an instance, by its image's own Python.

    rtsp.py PORT FIRST LAST DIRECTORY MODE    (MODE: "vod", "live" or "published")

`rtsp://HOST:PORT/NAME` is DIRECTORY/NAME.mp4: on demand from its beginning, a pipeline for each client; or live, one
pipeline for all who watch it, again and again; or published: there while somebody records (RFC 2326, 10.11) to
`rtsp://HOST:PORT/publish/NAME`. FIRST to LAST: its UDP ports. Nothing is decoded or encoded.
"""

import resource
import sys
import threading
from pathlib import Path

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

_NO_TIME = Gst.CLOCK_TIME_NONE
_KEPT_NS = 2 * Gst.SECOND  # of what is published, for a pipeline whose viewers have not begun to play
_FILE = "filesrc location={path} ! qtdemux name=film "
_VIDEO = "rtph264pay name=pay0 pt=96 config-interval=-1 "  # SPS and PPS come with each key frame
_AUDIO = "rtpmp4gpay name=pay1 pt=97 "
_ON_DEMAND = f"( {_FILE} film.video_0 ! queue ! {_VIDEO} film.audio_0 ! queue ! {_AUDIO} )"
# What cannot seek: where a client asks to begin, the server would seek to, for all who watch.
_LIVE = (
    f"( appsrc name=video is-live=true format=time ! {_VIDEO} appsrc name=audio is-live=true format=time ! {_AUDIO} )"
)
# What is published, its tracks in the order in which they must be announced.
_RECORDED = (
    "( rtph264depay name=depay0 ! video/x-h264,stream-format=avc,alignment=au ! appsink name=video sync=false "
    "rtpmp4gdepay name=depay1 ! appsink name=audio sync=false )"
)
_TRACKS = {"video": "video_0", "audio": "audio_0"}  # of the sources above, and as qtdemux calls them


def factory_of(launch: str, pool: GstRtspServer.RTSPAddressPool, *, shared: bool) -> GstRtspServer.RTSPMediaFactory:
    """What makes pipelines of one film, one for each client or for all."""
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(launch)
    factory.set_shared(shared)
    factory.set_address_pool(pool)
    return factory


def offer(mounts: GstRtspServer.RTSPMountPoints, pool: GstRtspServer.RTSPAddressPool, path: Path, mode: str) -> None:
    """Have a film watched, or published."""
    if mode == "published":
        Relay(mounts, pool, path.stem)
        return
    factory = factory_of(_ON_DEMAND.format(path=path) if mode == "vod" else _LIVE, pool, shared=mode == "live")
    if mode == "live":
        factory.connect("media-configure", lambda _factory, media: feed(media, path))
    mounts.add_factory(f"/{path.stem}", factory)


def feed(media: GstRtspServer.RTSPMedia, path: Path) -> None:
    """Give a live pipeline its tracks, for as long as somebody watches it."""
    for name, pad in _TRACKS.items():
        track = Track(path, pad)
        media.get_element().get_by_name(name).connect("need-data", track.give)
        media.connect("unprepared", track.end)


class Track:
    """A film's pictures or sound, read for ever."""

    def __init__(self, path: Path, pad: str) -> None:
        launch = f"{_FILE.format(path=path)} film.{pad} ! appsink name=out sync=false max-buffers=8"
        self._pipeline = Gst.parse_launch(launch)
        self._out = self._pipeline.get_by_name("out")
        self._begun_ns = 0  # when this time through the film began, by the stream's own time
        self._pipeline.set_state(Gst.State.PLAYING)

    def give(self, source: Gst.Element, _bytes: int) -> None:
        """Hand the next piece to a source that wants some: it is sent when its time comes."""
        while True:
            sample = self._out.emit("pull-sample")
            if sample is None:
                self._again()
                continue
            buffer = sample.get_buffer().copy()
            at_ns = sample.get_segment().to_running_time(Gst.Format.TIME, buffer.pts)
            if at_ns != _NO_TIME:  # else it is before the beginning
                break
        buffer.pts, buffer.dts = self._begun_ns + at_ns, _NO_TIME
        source.emit("push-sample", Gst.Sample.new(buffer, sample.get_caps(), None, None))

    def _again(self) -> None:
        found, length_ns = self._pipeline.query_duration(Gst.Format.TIME)
        if not found or length_ns <= 0:
            sys.exit("the film has no length")
        self._begun_ns += length_ns
        self._pipeline.seek_simple(Gst.Format.TIME, Gst.SeekFlags.FLUSH, 0)

    def end(self, _media: GstRtspServer.RTSPMedia) -> None:
        """Nobody watches any more; whoever comes next gets a new one."""
        self._pipeline.set_state(Gst.State.NULL)


class Relay:
    """What is published under a name, and watched by it for as long as somebody does: who publishes last is the one,
    and when that one leaves, who did before. Each client has a thread: one may come in the middle of another's leaving.
    """

    def __init__(self, mounts: GstRtspServer.RTSPMountPoints, pool: GstRtspServer.RTSPAddressPool, name: str) -> None:
        self._mounts, self._pool, self._path = mounts, pool, f"/{name}"
        self._watched: GstRtspServer.RTSPMediaFactory | None = None  # what makes that pipeline, while there is one
        self._turn = threading.Lock()  # whoever changes who publishes, and with it whether there is something to watch
        self._recorded: list[dict[str, Gst.Element]] = []  # by track, of all who publish
        self._sources: dict[str, Gst.Element] = {}  # by track, of the one pipeline for all who watch; empty: nobody
        factory = factory_of(_RECORDED, pool, shared=False)
        factory.set_transport_mode(GstRtspServer.RTSPTransportMode.RECORD)
        factory.connect("media-configure", self._ask)
        mounts.add_factory(f"/publish{self._path}", factory)

    def _ask(self, _factory: GstRtspServer.RTSPMediaFactory, media: GstRtspServer.RTSPMedia) -> None:
        """Somebody asks for the path, whatever for: only what is announced, and can be taken, is prepared.

        No sink may hold its media, or neither would ever go.
        """
        sinks = {name: media.get_element().get_by_name(name) for name in _TRACKS}
        media.connect("prepared", self._publish, sinks)
        media.connect("unprepared", self._end, sinks)

    def _publish(self, _media: GstRtspServer.RTSPMedia, sinks: dict[str, Gst.Element]) -> None:
        for name, sink in sinks.items():
            sink.set_property("emit-signals", True)
            sink.connect("new-sample", self._hand, name)
        with self._turn:
            self._recorded.append(sinks)
            if len(self._recorded) == 1:  # else those who watch go on
                factory = factory_of(_LIVE, self._pool, shared=True)
                factory.connect("media-configure", self._watch)
                self._watched = factory
                self._mounts.add_factory(self._path, factory)

    def _end(self, _media: GstRtspServer.RTSPMedia, sinks: dict[str, Gst.Element]) -> None:
        """Where nobody publishes any more, whoever watches is told so."""
        with self._turn:
            if sinks not in self._recorded:
                return
            self._recorded.remove(sinks)
            if self._recorded:
                return
            self._mounts.remove_factory(self._path)
            self._watched = None
            sources = list(self._sources.values())
        for source in sources:
            source.emit("end-of-stream")

    def _watch(self, factory: GstRtspServer.RTSPMediaFactory, media: GstRtspServer.RTSPMedia) -> None:
        """A pipeline for all who watch. One that comes too late, as all who published have left, ends at once."""
        media.set_rate_control(False)  # it comes at its own pace, and is sent on as it comes
        sources = {name: media.get_element().get_by_name(name) for name in _TRACKS}
        for source in sources.values():
            source.set_property("max-bytes", 0)
            source.set_property("max-time", _KEPT_NS)
            Gst.util_set_object_arg(source, "leaky-type", "downstream")
        with self._turn:
            is_there = factory is self._watched
            if is_there:
                self._sources = sources
        if not is_there:
            for source in sources.values():
                source.emit("end-of-stream")
        media.connect("unprepared", lambda _media: self._leave(sources))

    def _leave(self, sources: dict[str, Gst.Element]) -> None:
        if self._sources is sources:
            self._sources = {}

    def _hand(self, sink: Gst.Element, name: str) -> Gst.FlowReturn:
        """Give the next piece to the pipeline of those who watch. Both run by the machine's clock."""
        sample = sink.emit("pull-sample")
        source, is_last = self._sources.get(name), any(sinks[name] == sink for sinks in self._recorded[-1:])
        if sample is None or source is None or not is_last or not source.get_base_time():
            return Gst.FlowReturn.OK
        buffer = sample.get_buffer().copy()
        at_ns = sample.get_segment().to_running_time(Gst.Format.TIME, buffer.pts)
        if at_ns == _NO_TIME or at_ns + sink.get_base_time() < source.get_base_time():
            return Gst.FlowReturn.OK  # it is from before that pipeline began
        buffer.pts, buffer.dts = at_ns + sink.get_base_time() - source.get_base_time(), _NO_TIME
        source.emit("push-sample", Gst.Sample.new(buffer, sample.get_caps(), None, None))
        return Gst.FlowReturn.OK


def meet() -> None:
    """Have PyGObject make its classes of all that the threads will hold, before there is a second thread.

    It makes a class when it first meets a kind of thing. Two threads that meet it at the same time make two, and a
    thing of the one is refused as one of the other: a track whose first piece ends so never comes.
    """
    for namespace in (Gst, GstRtspServer):
        for name in dir(namespace):
            getattr(namespace, name)
    for launch in (_LIVE, _RECORDED):
        pipeline = Gst.parse_launch(launch)
        for name in _TRACKS:
            pipeline.get_by_name(name)


def main(port: str, first: str, last: str, directory: str, mode: str) -> None:
    """Serve until it is killed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a viewer on demand takes a dozen of them
    Gst.init(None)
    meet()
    pool = GstRtspServer.RTSPAddressPool()
    address = GstRtspServer.RTSP_ADDRESS_POOL_ANY_IPV4
    if not pool.add_range(address, address, int(first), int(last), 0):
        sys.exit(f"{first} to {last} are no range of ports")
    server = GstRtspServer.RTSPServer()
    server.set_address("0.0.0.0")
    server.set_service(port)
    server.set_backlog(4096)
    if mode == "published":
        # Whoever is first to ask waits until media come; the thread that waits must not be the one that receives them.
        server.get_thread_pool().set_max_threads(-1)
    for path in sorted(Path(directory).glob("*.mp4")):
        offer(server.get_mount_points(), pool, path, mode)
    if server.attach(None) == 0:
        sys.exit(f"port {port} is taken")
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
