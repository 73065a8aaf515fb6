"""Whatever an outside tool, the kernel or a daemon prints: a figure that makes sense, or an error of virtoll's."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzzing import changed, edited, fuzzed
from virtoll.errors import HostError, PlatformError, TrialError
from virtoll.hosts.cgroup import parse_mounts
from virtoll.hosts.meminfo import meminfo_bytes
from virtoll.images.kernel import insmod_order, kernel_version, versioned_dependencies
from virtoll.instruments import fio, iperf3, sockperf, stress_ng, sysbench
from virtoll.loads import ab, siege, wrk
from virtoll.loads.base import Measurement
from virtoll.loads.outside import Output
from virtoll.platforms import engine, qmp, vmm_api
from virtoll.platforms.unix_http import UnixConnection, decoded
from virtoll.record.model import Window

FIXTURES = Path(__file__).parent / "fixtures"
END_NS = 10**12


def texts(pattern: str) -> list[str]:
    found = [path.read_text() for path in sorted(FIXTURES.glob(pattern))]
    assert found
    return found


def expect_window(window: Window) -> None:
    assert window.duration_ns > 0
    assert window.work >= 0
    assert all(math.isfinite(value) and value >= 0 for value in window.values.values()), window.values


def expect_measurement(measurement: Measurement) -> None:
    window, events = measurement.window, measurement.window.events["request"]
    assert 0 <= events.completed <= events.offered <= events.intended or measurement.instrument.startswith("ab")
    assert window.duration_ns > 0
    assert window.work == window.counts["completed"] == events.completed
    assert all(count > 0 for count in events.failures.values())
    assert events.censored == sum(events.failures.values())
    assert all(isinstance(ns, int) and ns >= 0 for ns in events.percentiles_ns.values())
    assert Window.model_validate_json(window.model_dump_json()) == window
    told = {"completed": events.completed, "percentiles_ns": events.percentiles_ns}
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def tried(expect: Callable[[Any], None], parse: Callable[..., Any], *arguments: Any) -> None:
    said = ""
    try:
        expect(parse(*arguments))
    except (TrialError, HostError, PlatformError) as error:
        said = str(error)
    assert len(said) < 5000


def nothing(_found: Any) -> None:
    """Whatever comes will do."""


@pytest.mark.parametrize("name", ["tcp_in", "tcp_out", "udp_in", "udp_out", "refused"])
@fuzzed(25)
@given(data=st.data())
def test_iperf3(name: str, data: st.DataObject) -> None:
    (text,) = texts(f"instruments/iperf3/{name}.json")
    document = data.draw(changed(json.loads(text)))
    for said in (json.dumps(document), data.draw(edited([text]))):
        tried(expect_window, iperf3.parse, Output(said, "", END_NS), 1470)
        tried(nothing, iperf3.version, Output(said, "", END_NS))


@pytest.mark.parametrize("name", ["full", "sync", "write", "random-read-uring", "no-direct-io"])
@fuzzed(25)
@given(data=st.data())
def test_fio(name: str, data: st.DataObject) -> None:
    (text,) = texts(f"instruments/fio/{name}.stdout")
    said = [data.draw(edited([text]))]
    if "{" in text:
        said.append(json.dumps(data.draw(changed(json.loads(text[text.index("{") :])))))
    for each in said:
        for read in (fio.disk_values, fio.sync_values):
            tried(expect_window, fio_window, each, read)
        tried(nothing, lambda text: fio.told([fio.parse(0, text.encode(), b"")]), each)


def fio_window(text: str, read: Any) -> Window:
    return fio.measured(fio.parse(0, text.encode(), b""), read, END_NS)


@fuzzed(50)
@given(edited(texts("instruments/sockperf/*.txt")))
def test_sockperf(text: str) -> None:
    output = Output(text, text[:100], END_NS)
    tried(expect_window, sockperf.parse, output)
    tried(nothing, sockperf.dropped, output)
    assert sockperf.version(output)


@fuzzed(50)
@given(edited(texts("instruments/sysbench/*.txt")))
def test_sysbench(text: str) -> None:
    tried(expect_window, lambda: sysbench.window(sysbench.parse(text), END_NS))
    tried(nothing, sysbench.named, text)


@fuzzed(50)
@given(edited(texts("instruments/stress_ng/*.txt")))
def test_stress_ng(text: str) -> None:
    tried(expect_window, lambda: stress_ng.window(stress_ng.parse(text), END_NS))
    tried(nothing, stress_ng.named, text)


@fuzzed(50)
@given(edited(texts("loads/ab_*.txt")), edited(texts("loads/ab_*.csv")))
def test_ab(text: str, csv: str) -> None:
    tried(expect_measurement, ab.parse, Output(text, "", END_NS), csv, ab.AbSettings(requests=2000), 1000)


@fuzzed(50)
@given(edited(texts("loads/wrk_*.txt")))
def test_wrk(text: str) -> None:
    tried(expect_measurement, wrk.parse, Output(text, "", END_NS))


@fuzzed(50)
@given(edited(texts("loads/siege_*.txt")), st.data())
def test_siege(text: str, data: st.DataObject) -> None:
    whole = texts("loads/siege_ok.txt")[0]
    document = json.loads(whole[whole.index("{") : whole.rindex("}") + 1])
    for said in (text, json.dumps(data.draw(changed(document)))):
        tried(expect_measurement, siege.parse, Output(said, "", END_NS))


# -- the kernel's files, packages -------------------------------------------------------------------------

MOUNTINFO = [
    "33 32 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n"
    "34 32 0:30 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n",
    "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
]


@fuzzed(50)
@given(edited(MOUNTINFO), st.text(max_size=20) | st.just("cpu memory pids io"))
@example("30 23 - cgroup", "cpu memory")
@example("- cgroup cgroup rw,cpu", "cpu memory")
def test_cgroup_mounts(mountinfo: str, controllers: str) -> None:
    try:
        found = parse_mounts(mountinfo, lambda path: controllers)
    except HostError:
        return
    assert {"cpu", "memory"} <= found.mounts.keys()


@fuzzed(40)
@given(edited(["MemTotal:       16384256 kB\nMemFree:  1 kB\nMemAvailable:   12 kB\n"]))
def test_meminfo(text: str) -> None:
    for name in ("MemTotal", "MemAvailable"):
        tried(lambda found: None if found >= 0 else pytest.fail(str(found)), meminfo_bytes, text, name)


@fuzzed(50)
@given(st.binary(max_size=600), st.integers(0, 700))
def test_a_kernel_image(tail: bytes, size: int) -> None:
    image = (bytes(0x202) + b"HdrS" + tail)[: max(0x206, size)]
    for data in (image, tail, b"Linux version " + tail):
        try:
            version = kernel_version(data, "vmlinuz")
        except HostError:
            continue
        assert version
        assert "/" not in version, "it names a directory of modules"


@fuzzed(40)
@given(
    edited(
        ["linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-9-cloud-amd64\n", "insmod /lib/a.ko x=1\nbuiltin b\n"]
    )
)
def test_what_apt_and_modprobe_say(text: str) -> None:
    assert all(name.startswith("linux-image-") for name in versioned_dependencies(text, "linux-image-"))
    insmod_order(text)


# -- daemons ----------------------------------------------------------------------------------------------


@fuzzed(40)
@given(edited(['{"return": {}}\n', '{"error": {"class": "x", "desc": "no"}}\n', '{"event": "STOP"}\n{"return": 1}\n']))
@example("[]\n")
@example('{"error": 7}\n')
@example('{"error": {"desc": []}}\n')
@example("\xff\n")
def test_qmp(said: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"QMP": {}}\n{"return": {}}\n' + said.encode(errors="surrogatepass"))
        theirs.shutdown(socket.SHUT_WR)
        tried(nothing, qmp.Qmp(ours).execute, "query-status")


def test_qmp_reads_no_line_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmp, "MOST_BYTES", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 2000)
        with pytest.raises(PlatformError, match="more than"):
            qmp.Qmp(ours)


@fuzzed(40)
@given(edited(['{"message": "no"}', '{"Id": "1"}\n{"status": "done"}', ""]))
def test_answers_of_dockerd(text: str) -> None:
    decoded(text.encode(errors="surrogatepass"))
    assert isinstance(engine._message(text.encode(errors="surrogatepass")), str)


def test_dockerd_is_not_listened_to_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_BYTES", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 101 " + b"x" * 2000)
        with pytest.raises(OSError, match="more than"):
            engine._read_head(ours)


@fuzzed(60)
@given(
    st.one_of(
        st.binary(max_size=400),
        edited(['HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"state": 1.0}', "HTTP/1.1 204 \r\n\r\n"]).map(
            lambda text: text.encode(errors="surrogatepass")
        ),
    )
)
def test_answers_of_a_monitors_api(said: bytes) -> None:
    """Whoever got hold of a monitor may answer as he likes."""
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.MonkeyPatch.context() as patch:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        patch.setattr(UnixConnection, "connect", lambda connection: setattr(connection, "sock", ours.dup()))
        tried(nothing, vmm_api.Api("Firecracker", 0).get, "/")


def test_a_monitors_api_is_not_listened_to_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmm_api, "MOST_BYTES", 1000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000)
        monkeypatch.setattr(UnixConnection, "connect", lambda there: setattr(there, "sock", ours.dup()))
        with pytest.raises(PlatformError, match="more than 1000 bytes"):
            vmm_api.Api("Firecracker", 0).get("/")
