"""What OpenVZ's kernel files and tools say, from fixtures of the documented formats; no host was at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from virtoll.errors import HostError
from virtoll.hosts import openvz
from virtoll.hosts.openvz import Beancounter, Container, Usage, clock_of, parse_beancounters, unit

FIXTURES = Path(__file__).parent / "fixtures/openvz"
CT = "2f3c5a1e-7a0b-4f3a-9f0e-0c1d2e3f4a5b"


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


def test_beancounters_are_of_the_container_whose_id_was_last() -> None:
    found = parse_beancounters(fixture("user_beancounters"))
    assert [*found] == ["101", "0"]
    assert found["101"]["numproc"] == Beancounter(21, 64, 64, 64, failcnt=3)
    assert found["101"]["physpages"] == Beancounter(12_040, 65_536, 0, 65_536, 0)
    assert found["101"]["kmemsize"].limit is None, "LONG_MAX is no limit"
    assert found["101"]["swappages"].limit == 0, "and none of it is one"
    assert found["0"]["numproc"].held == 140
    assert "dummy" not in found["101"]
    assert len(found["101"]) == 21


def test_units_follow_from_the_resource() -> None:
    assert {
        name: unit(name) for name in ("physpages", "kmemsize", "tcpsndbuf", "dcachesize", "numproc", "numfile")
    } == {
        "physpages": "pages",
        "kmemsize": "bytes",
        "tcpsndbuf": "bytes",
        "dcachesize": "bytes",
        "numproc": "things",
        "numfile": "things",
    }


def test_cpu_time_is_in_jiffies_and_in_what_the_kernel_counts() -> None:
    found = openvz.parse_vestat(fixture("vestat"), clock_of("3.10.0-1160.90.1.vz7.200.7"))
    assert found["101"] == Usage(7800, 0, 2411, 360_120, 10_211_000_000, "nanoseconds")
    assert found[CT].used == 210_000_000
    old = openvz.parse_vestat("Version: 2.2\n  VEID user nice system uptime\n  7  1 2 3 4\n  8  1 2\n", "cycles")
    assert old == {"7": Usage(1, 2, 3, 4, None, "cycles")}
    assert [clock_of(kernel) for kernel in ("2.6.32-042stab145.3", "4.18.0-x", "")] == [
        "cycles",
        "nanoseconds",
        "cycles",
    ]


def test_vzlist_tells_ids_of_both_kinds() -> None:
    assert openvz.parse_vzlist(fixture("vzlist.json")) == [
        Container("101", "running", "proxy.example", ("198.18.3.10", "2001:db8::10"), 100.0, 1000),
        Container(CT, "stopped", None, (), None, 2000),
    ]


def test_prlctl_tells_addresses_in_one_text() -> None:
    first, second = openvz.parse_prlctl(fixture("prlctl.json"))
    assert first == Container(CT, "running", None, ("198.18.3.10", "198.18.3.11"), None, None)
    assert second.addresses == ()


def test_a_quote_in_a_hostname_is_told_as_what_it_is() -> None:
    with pytest.raises(HostError, match="is not JSON") as raised:
        openvz.parse_vzlist(fixture("vzlist.json").replace("proxy.example", 'pro"xy'))
    assert "quote" in raised.value.problem.remedy


@pytest.mark.parametrize("parse", [parse_beancounters, lambda text: openvz.parse_vestat(text, "cycles")])
def test_a_file_that_is_another_is_refused(parse) -> None:  # type: ignore[no-untyped-def]
    for text in ("", "uid resource held", "Version: two\n"):
        with pytest.raises(HostError, match="does not begin with a version"):
            parse(text)


_WORDS = st.lists(st.sampled_from(["101:", "7", "kmemsize", "dummy", "9" * 30, "-1", "0", ":", "\x00", "²", "\n"]))


@given(_WORDS | st.lists(st.text()))
def test_no_line_of_a_file_stops_the_reading(words: list[str]) -> None:
    text = "Version: 2.5\n" + " ".join(words)
    for resources in parse_beancounters(text).values():
        assert all(counter.held >= 0 for counter in resources.values())
    assert all(usage.user_jiffies >= 0 for usage in openvz.parse_vestat(text, "cycles").values())


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["ctid", "uuid", "ip", "ip_configured", "cpuunits"]), inner)
    ),
)


@given(_JSON)
def test_any_json_gives_containers_or_none(answer: object) -> None:

    for parse in (openvz.parse_vzlist, openvz.parse_prlctl):
        for container in parse(json.dumps(answer)):
            assert isinstance(container.id, str)
            assert all(isinstance(address, str) for address in container.addresses)
