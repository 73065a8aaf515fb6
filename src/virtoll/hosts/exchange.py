"""A command's input and output, by pipes, with a bound on what is kept of it."""

from __future__ import annotations

import os
import select
import selectors
import subprocess
import time
from dataclasses import dataclass

MOST_OUTPUT_BYTES = 16 * 1024**2  # kept of each stream


@dataclass(frozen=True)
class Said:
    """What a command wrote; of a stream in ``cut`` only the beginning."""

    stdout: bytes
    stderr: bytes
    cut: tuple[str, ...] = ()


def exchange(process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float) -> Said:
    """Feed it ``stdin`` and read what it writes until it has ended. subprocess.TimeoutExpired holds what came so far.

    What is beyond MOST_OUTPUT_BYTES is read, so that the command does not stand still, and not kept.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout_s
    kept = {"stdout": bytearray(), "stderr": bytearray()}
    cut: set[str] = set()
    rest = memoryview(stdin)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, "stdout")
        selector.register(process.stderr, selectors.EVENT_READ, "stderr")
        if rest:
            selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        else:
            process.stdin.close()
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, timeout_s, bytes(kept["stdout"]), bytes(kept["stderr"]))
            for key, _ in ready:
                if key.data == "stdin":
                    rest = _written(key.fd, rest)
                    ended = not rest
                else:
                    data = os.read(key.fd, 65536)
                    ended = not data
                    room_bytes = MOST_OUTPUT_BYTES - len(kept[key.data])
                    kept[key.data] += data[:room_bytes]
                    if len(data) > room_bytes:
                        cut.add(key.data)
                if ended:
                    selector.unregister(key.fileobj)
                    if key.data == "stdin":
                        process.stdin.close()
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        error.stdout, error.stderr = bytes(kept["stdout"]), bytes(kept["stderr"])
        raise
    return Said(bytes(kept["stdout"]), bytes(kept["stderr"]), tuple(sorted(cut)))


def _written(descriptor: int, data: memoryview) -> memoryview:
    """What is left of ``data`` after as much as a ready pipe takes without blocking; nothing where nobody reads."""
    try:
        return data[os.write(descriptor, data[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return data[:0]
