"""The tests of rust/, by cargo: they wait for clocks and sockets for most of their time, as others do meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from virtoll.hosts.local import end_session

CHECKOUT = Path(__file__).parent.parent

# A queue that another's datagrams always fill: what comes to loopback waits behind them for about a millisecond. A busy
# machine does the same now and then, where its kernel leaves deliveries to a thread of its own.
SLOW_LOOPBACK = """
ip link set lo mtu 1500 up
said=$(tc qdisc add dev lo root tbf rate 40mbit burst 1600 latency 200ms 2>&1) || case $said in
    *"qdisc kind is unknown"*) exit 77 ;;
    *) echo "$said"; exit 1 ;;
esac
"$0" -c '
import os, socket
target, source = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
target.bind(("127.0.0.99", 0))
source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
parent = os.getppid()
while os.getppid() == parent:  # else it outlives who began it
    source.sendto(bytes(1000), target.getsockname())
' &
ended=0
"$@" || ended=$?
kill $!
exit $ended
"""


def _tests(directory: Path, *packages: str, before: tuple[str, ...] = ()) -> tuple[int, str]:
    """How cargo's tests end, and what it says. Their files are below this directory, and of nobody's inventory."""
    argv = [*before, "setup/rust", "cargo", "test", "--quiet", "--locked", "--no-fail-fast", *packages]
    environment = {**os.environ, "TMPDIR": str(directory)}
    with (directory / "told").open("wb") as told:
        process = subprocess.Popen(
            argv, cwd=CHECKOUT, env=environment, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait()
        finally:
            end_session(process)
            said = (directory / "told").read_text()
            print(said)  # of one that hangs too
    return process.returncode, said


def test_what_cargo_tests_holds(tmp_path: Path) -> None:
    """Alone: ``setup/rust cargo test``."""
    ended, said = _tests(tmp_path)
    assert ended == 0
    assert said.count("test result: ok.") > 5


@pytest.mark.machine
def test_it_holds_where_loopback_delivers_a_moment_later(tmp_path: Path) -> None:
    packages = [word for name in ("load", "confer", "generator") for word in ("--package", f"virtoll-{name}")]
    assert _tests(tmp_path, *packages, "--no-run")[0] == 0  # there is no network in there
    before = ("unshare", "--net", "sh", "-e", "-c", SLOW_LOOPBACK, sys.executable)
    ended, said = _tests(tmp_path, *packages, before=before)
    if ended == 77:
        pytest.skip("this kernel has no tbf: modprobe sch_tbf")
    assert ended == 0
    assert said.count("test result: ok.") >= 3
