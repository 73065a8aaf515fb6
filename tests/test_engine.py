"""The Docker API's attach stream: frames in any pieces become lines."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.agent import StreamError
from virtoll.errors import PlatformError
from virtoll.platforms.engine import ContainerStream, Engine


def _frame(stream: int, data: bytes) -> bytes:
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12),
    cut=st.integers(1, 17),
)
def test_frames_become_lines(frames: list[tuple[int, bytes]], cut: int) -> None:
    wire = b"".join(_frame(*frame) for frame in frames) + _frame(1, b"\nend\n")
    wanted = b"".join(data for stream, data in frames if stream == 1) + b"\nend\n"
    ours, theirs = socket.socketpair()
    with theirs:
        stream = ContainerStream(ours.detach(), "test", wire[:cut])
        for start in range(cut, len(wire), cut):
            theirs.sendall(wire[start : start + cut])
        lines = [stream.receive_line(5) for _ in range(wanted.count(b"\n"))]
        assert b"".join(line + b"\n" for line in lines) == wanted
        stream.send(b"plain\n")
        assert theirs.recv(100) == b"plain\n"
        stream.close()


def test_the_end_of_the_stream_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    stream = ContainerStream(ours.detach(), "agent in container ab12")
    with pytest.raises(StreamError, match="agent in container ab12"):
        stream.receive_line(5)
    stream.close()


@pytest.fixture
def refusing_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("d") / "sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                body = b'{"message":"no such image"}'
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # a request's body may come after its head
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        yield Engine(path)
        thread.join(5)


def test_a_refusal_carries_the_daemons_words(refusing_daemon: Engine) -> None:
    with pytest.raises(PlatformError, match="no such image"):
        refusing_daemon.call("POST", "/containers/create", {})


def test_an_image_is_sent_in_as_large_pieces_as_a_pipe_holds(refusing_daemon: Engine) -> None:
    asked: list[int] = []

    class Archive(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            asked.append(size or -1)
            return super().read(size)

    with pytest.raises(PlatformError, match="no such image"):
        refusing_daemon.call("POST", "/images/create", Archive(b"a tar"), fromSrc="-")
    assert set(asked) == {64 * 1024}


def test_a_refused_attach_is_an_error(refusing_daemon: Engine) -> None:
    with pytest.raises(PlatformError, match="404"):
        refusing_daemon.attach("ab12")


def test_no_daemon_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(PlatformError, match="does not answer"):
        Engine(tmp_path_factory.mktemp("d") / "none").call("GET", "/version")
