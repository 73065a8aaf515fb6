"""GStreamer's RTSP server: what `virtoll.services.gst_rtsp` starts inside an instance, by its image's own Python.

    rtsp.py PORT FIRST LAST DIRECTORY MODE    (MODE: "vod" or "live")

`rtsp://HOST:PORT/NAME` is DIRECTORY/NAME.mp4: on demand from its beginning, a pipeline for each client; or live, one
pipeline for all who watch it, again and again. FIRST to LAST: its UDP ports. Nothing is decoded or encoded.
"""

import resource
import sys
from pathlib import Path

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

_NO_TIME = Gst.CLOCK_TIME_NONE
_FILE = "filesrc location={path} ! qtdemux name=film "
_VIDEO = "rtph264pay name=pay0 pt=96 config-interval=-1 "  # SPS and PPS come with each key frame
_AUDIO = "rtpmp4gpay name=pay1 pt=97 "
_ON_DEMAND = f"( {_FILE} film.video_0 ! queue ! {_VIDEO} film.audio_0 ! queue ! {_AUDIO} )"
# What cannot seek: where a client asks to begin, the server would seek to, for all who watch.
_LIVE = (
    f"( appsrc name=video is-live=true format=time ! {_VIDEO} appsrc name=audio is-live=true format=time ! {_AUDIO} )"
)
_TRACKS = {"video": "video_0", "audio": "audio_0"}  # of the sources above, and as qtdemux calls them


def factory_of(path: Path, pool: GstRtspServer.RTSPAddressPool, *, live: bool) -> GstRtspServer.RTSPMediaFactory:
    """What makes pipelines of one film."""
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(_LIVE if live else _ON_DEMAND.format(path=path))
    factory.set_shared(live)
    factory.set_address_pool(pool)
    if live:
        factory.connect("media-configure", lambda _factory, media: feed(media, path))
    return factory


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


def main(port: str, first: str, last: str, directory: str, mode: str) -> None:
    """Serve until it is killed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a viewer on demand takes a dozen of them
    Gst.init(None)
    pool = GstRtspServer.RTSPAddressPool()
    address = GstRtspServer.RTSP_ADDRESS_POOL_ANY_IPV4
    if not pool.add_range(address, address, int(first), int(last), 0):
        sys.exit(f"{first} to {last} are no range of ports")
    server = GstRtspServer.RTSPServer()
    server.set_address("0.0.0.0")
    server.set_service(port)
    server.set_backlog(4096)
    for path in sorted(Path(directory).glob("*.mp4")):
        server.get_mount_points().add_factory(f"/{path.stem}", factory_of(path, pool, live=mode == "live"))
    if server.attach(None) == 0:
        sys.exit(f"port {port} is taken")
    GLib.MainLoop().run()


if __name__ == "__main__":
    main(*sys.argv[1:])
