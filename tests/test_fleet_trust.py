"""Who may speak to whom in a fleet: certificates, addresses, and messages that anybody may have sent."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from authority import Authority
from virtoll import cli
from virtoll.errors import HostError, StudyError, TrialError
from virtoll.fakes import fake_environment
from virtoll.hosts import interrupts
from virtoll.record.model import Arm, Measured, PlannedTrial, TrialRecord, Window
from virtoll.record.tables import histogram_table, histograms_table, requests_table, samples_table
from virtoll.record.tables import packed as table_packed
from virtoll.run import environment, handed, one_by_one, trusted, worker
from virtoll.run.fleet import Answer, read
from virtoll.run.handed import Handed, collected, packed, spool_in, unpacked
from virtoll.run.hosting import Hosting, Offer, Ready
from virtoll.run.trusted import security
from yard import PATIENCE_S, Yard

Made = Callable[[Path], Yard]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("ours") / "ca")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("theirs") / "ca")


@pytest.fixture
def yard_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """A scheduler with these certificates; the command, and workers, may be given others."""
    made: list[Yard] = []

    def make(tls: Path) -> Yard:
        made.append(Yard(tmp_path, monkeypatch, tls))
        monkeypatch.setattr(environment, "describe", lambda *_, **__: fake_environment())
        return made[0]

    try:
        yield make
    finally:
        for each in made:
            each.end()


def words(capsys: Any) -> str:
    said = capsys.readouterr()
    return " ".join(f"{said.out} {said.err}".split())


# -- certificates -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("undrawn")
def test_the_whole_way_goes_through_tls(yard_of: Made, ours: Authority) -> None:
    yard = yard_of(ours.host("good"))
    yard.start("node1", "node2")
    assert yard.address.startswith("tls://")
    assert yard.run() == 0
    assert len(yard.run_directory.records()) == 18


@pytest.mark.parametrize(
    ("certificate", "why"),
    [
        (("name", "DNS:elsewhere.example", 30), "IP address mismatch"),
        (("address", "IP:127.0.0.2", 30), "IP address mismatch"),
        (("expired", "IP:127.0.0.1", 0), "certificate has expired"),
    ],
    ids=["another name", "another address", "expired"],
)
def test_a_scheduler_that_does_not_show_who_it_is_is_told_nothing(
    yard_of: Made, ours: Authority, capsys: Any, certificate: tuple[str, str, int], why: str
) -> None:
    name, names, days = certificate
    yard = yard_of(ours.host(name, names, days=days))
    with pytest.raises(HostError, match=f"its certificate is not to be trusted: .*{why}"):
        yard.start("node1")
    assert yard.run() == 3
    said = words(capsys)
    assert f"{yard.address}: its certificate is not to be trusted" in said
    assert why in said
    assert "give it one that the fleet's ca.pem signed, that names its host, and that has not expired" in said


def test_a_scheduler_of_strangers_is_told_nothing(yard_of: Made, ours: Authority, theirs: Authority) -> None:
    yard = yard_of(theirs.host("stranger", trusts=theirs))
    yard.tls = ours.host("asks a stranger")
    with pytest.raises(HostError, match=r"its certificate is not to be trusted: .*(self.signed|local issuer)"):
        yard.start("node1")


def test_a_worker_whose_certificate_names_another_does_not_begin(yard_of: Made, ours: Authority) -> None:
    yard = yard_of(ours.host("of the scheduler"))
    yard.tls = ours.host("of another host", "IP:127.0.0.2")
    with pytest.raises(HostError, match=r"its certificate is not to be trusted: .*IP address mismatch"):
        yard.start("node1")


def test_a_stranger_gets_no_word_with_our_scheduler(yard_of: Made, ours: Authority, theirs: Authority) -> None:
    yard = yard_of(ours.host("asked by a stranger"))
    yard.tls = theirs.host("the stranger", trusts=ours)
    with pytest.raises(HostError, match="nobody answers as it should"):
        yard.start("node1")
    assert not yard.scheduler.workers


@pytest.mark.parametrize(
    ("address", "tls", "why"),
    [
        ("tcp://192.0.2.1:8786", None, "tcp:// asks nobody"),
        ("tcp://127.0.0.1:8786", None, "tcp:// asks nobody"),
        ("tls://127.0.0.1:8786", None, "tls:// needs certificates"),
        ("tls://127.0.0.1", Path("/nowhere"), "no host and port"),
        ("127.0.0.1:8786", None, "no address of a scheduler"),
        ("ws://127.0.0.1:8786", None, "no address of a scheduler"),
    ],
)
def test_an_address_that_will_not_do_is_refused(address: str, tls: Path | None, why: str) -> None:
    with pytest.raises(StudyError, match=why) as caught:
        security(address, tls)
    assert caught.value.exit_code == 2, "a word was wrong, and nothing is missing on this machine"


def test_certificates_that_are_not_there_are_named() -> None:
    with pytest.raises(HostError, match=r"not there: /nowhere/ca\.pem, /nowhere/cert\.pem, /nowhere/key\.pem"):
        security("tls://127.0.0.1:8786", Path("/nowhere"))


def test_certificates_that_are_none_are_refused(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("no certificate")
        (tmp_path / name).chmod(0o600)
    with pytest.raises(HostError, match="unusable certificates"):
        security("tls://127.0.0.1:8786", tmp_path)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o601])
def test_a_key_that_others_may_read_is_refused(mode: int, ours: Authority) -> None:
    """Whoever has it is root on all hosts of the fleet."""
    tls = ours.host(f"shared as {mode:o}")
    security("tls://127.0.0.1:8786", tls)
    (tls / "key.pem").chmod(mode)
    with pytest.raises(HostError, match=r"key\.pem: others may read it.*(?s:.*)chmod 600"):
        security("tls://127.0.0.1:8786", tls)


def test_a_scheduler_that_is_not_there_is_told_in_words(
    ours: Authority, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted, "REACH_S", 0.5)
    with socket.socket() as taken:  # bound and not listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        address, tls = f"tls://127.0.0.1:{taken.getsockname()[1]}", str(ours.host("asks nobody"))
        with pytest.raises(SystemExit) as end:
            cli.main(["run", "proxy", "--quick", "--cluster", address, "--tls", tls, "--out", str(tmp_path / "run")])
    assert end.value.code == 3
    said = words(capsys)
    assert f"{address}: nobody answers as it should" in said
    assert "start it (`virtoll scheduler`)" in said


# -- messages ---------------------------------------------------------------------------------------------

ARM = Arm(label="native+host", platform="native", network="host", role="baseline")


def trial_of(number: int) -> PlannedTrial:
    return PlannedTrial(id=f"b01-t{number:04d}", block=1, position=number, arm=ARM, condition={}, host="node1")


def sealed(number: int, reason: str = "") -> TrialRecord:
    return TrialRecord(trial=trial_of(number), status="failed", reason=reason, started_at="2026-01-01T00:00:00+00:00")


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
TRIALS = st.lists(st.dictionaries(NAMES, st.binary(max_size=200), max_size=5), min_size=1, max_size=4)


def message_of(each: Sequence[dict[str, bytes]]) -> tuple[bytes, list[PlannedTrial]]:
    handed = [Handed(sealed(number), files) for number, files in enumerate(each, 1)]
    return packed(handed), [one.record.trial for one in handed]


@settings(max_examples=30)
@given(TRIALS)
def test_what_is_packed_is_unpacked(each: list[dict[str, bytes]]) -> None:
    message, turn = message_of(each)
    assert [one.files for one in unpacked(message, turn)] == each


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    with pytest.raises(TrialError, match="cannot be read"):
        unpacked(message, [trial_of(1)])


@given(TRIALS, st.data())
def test_a_changed_message_is_the_same_trials_or_refused(each: list[dict[str, bytes]], data: st.DataObject) -> None:
    message, turn = message_of(each)
    at = data.draw(st.integers(0, len(message) - 1))
    changed = message[:at] + data.draw(st.binary(max_size=3)) + message[at + data.draw(st.integers(0, 3)) :]
    try:
        found = unpacked(changed, turn)
    except TrialError:
        return
    assert [one.record.trial for one in found] == turn
    assert all("/" not in name and not name.startswith(".") for one in found for name in one.files)


@pytest.mark.parametrize("name", ["../../plan.json", "/etc/passwd", ".hidden", "", "a/b", "a\0b", "x" * 200])
def test_a_file_has_one_plain_word_for_a_name(name: str) -> None:
    message = packed([Handed(sealed(1), {name: b"x"})])
    with pytest.raises(TrialError, match="no heading of trials"):
        unpacked(message, [trial_of(1)])


SAMPLE = samples_table([(1, "host", "cpu_ns", 5), (2, "host", "cpu_ns", 9)])
REQUEST = np.array([1])
OPEN = Measured(name="http", instrument="none", loop="open", windows=[Window(start_ns=0, duration_ns=1, work=0)])


def rewritten(table: pa.Table) -> bytes:
    """Of optional columns, whose rows may be without a value."""
    into = pa.BufferOutputStream()
    pq.write_table(table, into)
    return bytes(into.getvalue())


def half_overwritten(data: bytes) -> bytes:
    """Its end tells of its rows, which are none."""
    return data[:4] + b"\xff" * (len(data) // 3) + data[4 + len(data) // 3 :]


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("outside.parquet", b"garbage", "Parquet"),
        ("outside.parquet", rewritten(SAMPLE.drop_columns(["value"])), "it has no column value"),
        ("outside.parquet", rewritten(SAMPLE.set_column(0, "t_ns", pa.array(["a", "b"]))), "column t_ns holds string"),
        ("inside.parquet", rewritten(SAMPLE.set_column(3, "value", pa.array([1, None]))), "rows without a value"),
        ("series.parquet", half_overwritten(bytes(table_packed(SAMPLE))), ""),
        ("latency.parquet", table_packed(SAMPLE), "it has no column lower_ns"),
        (
            "requests.parquet",
            table_packed(requests_table(REQUEST, REQUEST, REQUEST.astype(np.int16))),
            "it has no column late_ns",
        ),
    ],
)
def test_a_table_that_no_report_could_read_is_refused(name: str, data: bytes, why: str) -> None:
    record = sealed(1).model_copy(update={"measured": OPEN})
    with pytest.raises(TrialError, match=rf"it is a damaged {name} of b01-t0001: .*{why}"):
        unpacked(packed([Handed(record, {name: bytes(data)})]), [trial_of(1)])


def test_tables_as_they_are_written_are_taken() -> None:
    late = requests_table(REQUEST, REQUEST, REQUEST.astype(np.int16), REQUEST)
    files = {
        "outside.parquet": SAMPLE,
        "inside.parquet": samples_table([]),
        "latency.parquet": histogram_table([(1, 2, 3)]),
        "lateness.parquet": histograms_table([[(1, 2, 3)], []]),
        "requests.parquet": late,
    }
    handed = Handed(
        sealed(1).model_copy(update={"measured": OPEN}),
        {name: bytes(table_packed(table)) for name, table in files.items()} | {"own.parquet": b"a service's own"},
    )
    assert unpacked(packed([handed]), [trial_of(1)]) == [handed]


def test_trials_that_were_not_asked_for_are_refused() -> None:
    message, _ = message_of([{}])
    for turn in ([trial_of(2)], [trial_of(1), trial_of(2)], [trial_of(1).model_copy(update={"host": "node2"})]):
        with pytest.raises(TrialError, match="of other trials than it was asked for"):
            unpacked(message, turn)


def test_what_no_json_holds_is_refused() -> None:
    message, turn = message_of([{}])
    head = message[8:].replace(b'"facts": {}', b'"facts": {"a": NaN}')
    unpacked(len(head).to_bytes(8, "big") + head, turn)  # pydantic keeps it as null
    head = message[8:].replace(b'"phases": []', b'"phases": [{"name": "a", "start_ns": NaN, "duration_ns": 1}]')
    with pytest.raises(TrialError):
        unpacked(len(head).to_bytes(8, "big") + head, turn)


def test_more_than_a_message_holds_is_a_trial_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "MOST_BYTES", 3000)
    spool = spool_in(tmp_path / "spool")
    for number, size in ((1, 1000), (2, 1000)):
        (spool.trial_directory(trial_of(number)) / "requests.parquet").write_bytes(b"x" * size)
        spool.seal(sealed(number))
    first, second = collected(spool, [trial_of(1), trial_of(2)])
    assert list(first.files) == ["requests.parquet"]
    assert second.files == {}
    assert "its 1 raw files hold 1,000 B, which is more than a host hands back" in second.record.reason
    with pytest.raises(TrialError, match="and a turn's trials are at most 3,000"):
        unpacked(b"x" * 3001, [trial_of(1)])


def test_a_record_that_is_too_long_is_a_trial_that_failed_and_costs_its_turn_no_other(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    for number, said in ((1, "x" * handed.MOST_RECORD_BYTES), (2, "x")):
        spool.trial_directory(trial_of(number))
        spool.seal(sealed(number).model_copy(update={"facts": {"said": said}}))
    turn = [trial_of(1), trial_of(2)]
    first, second = unpacked(packed(collected(spool, turn)), turn)
    assert first.record.status == "failed"
    assert re.match(r"its record is 1,04\d,\d{3} B long, which is more than a host hands back", first.record.reason)
    assert second.record.facts == {"said": "x"}


def test_records_that_are_too_long_together_cost_the_last_of_their_turn_and_no_other(tmp_path: Path) -> None:
    """Each is short enough; of what they made together nothing was read, and the host was not asked again."""
    spool, turn = spool_in(tmp_path / "spool"), [trial_of(number) for number in range(1, 20)]
    for number, trial in enumerate(turn, 1):
        spool.trial_directory(trial)
        spool.seal(sealed(number).model_copy(update={"facts": {"said": "x" * 1_000_000}}))
    found = unpacked(packed(collected(spool, turn)), turn)
    assert {each.record.status for each in found[:15]} == {sealed(1).status}
    assert [each.record.status for each in found[15:]] == ["failed"] * 4
    assert re.match(r"its record is 1,00\d,\d{3} B long, which with its turn's others", found[-1].record.reason)


def test_a_file_of_no_plain_name_is_a_trial_that_failed_and_no_message_that_is_refused(tmp_path: Path) -> None:
    spool = spool_in(tmp_path / "spool")
    for number, name in ((1, "_odd name.txt"), (2, "log.txt")):
        (spool.trial_directory(trial_of(number)) / name).write_bytes(b"x")
        spool.seal(sealed(number))
    turn = [trial_of(1), trial_of(2)]
    first, second = unpacked(packed(collected(spool, turn)), turn)
    assert first.files == {}
    assert "a raw file is called '_odd name.txt', which is no plain name" in first.record.reason
    assert second.files == {"log.txt": b"x"}


def test_certificates_that_may_not_be_read_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_file(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(HostError, match="cannot be looked at: Permission denied"):
        security("tls://127.0.0.1:8786", Path("/root/tls"))


def test_two_hosts_of_one_name_are_told_what_to_do() -> None:
    def do() -> None:
        raise RuntimeError("Unexpected error") from ValueError("name taken, node1")

    with pytest.raises(HostError, match="another host is called so already") as caught:
        worker._in_words(do, "tls://127.0.0.1:8786")
    assert caught.value.problem.remedy == "call this one otherwise: --name NAME"


class _Stays:
    """What is held for a run, and cannot be given up."""

    run, stage = "ours", None

    def __init__(self, error: BaseException) -> None:
        self._error, self.stack = error, self

    def answer(self, _order: object) -> bytes:
        raise self._error

    def close(self) -> None:
        raise HostError("a mount is busy")


def held_by(error: BaseException) -> Hosting:
    made = Hosting("node1")
    made._session = _Stays(error)  # type: ignore[assignment]
    return made


PERFORM = b'{"run": "ours", "kind": "perform"}'


def test_an_interrupt_is_not_lost_where_undoing_fails(capsys: Any) -> None:
    """Else Ctrl-C at a worker would be an answer like any other, and the worker go on."""
    with pytest.raises(KeyboardInterrupt):
        held_by(KeyboardInterrupt()).answer(PERFORM)
    assert "node1: not all was undone: a mount is busy" in capsys.readouterr().err


def test_what_could_not_be_undone_is_told_with_the_refusal() -> None:
    said = held_by(HostError("it is broken")).answer(PERFORM).decode()
    assert "it is broken; and not all was undone: a mount is busy" in said


def test_an_interrupt_is_not_lost_where_what_it_led_to_failed() -> None:
    """As where wiring is interrupted, and undoing that fails: what arrives is the failure."""
    error = HostError("a link is busy")
    error.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        held_by(error).answer(PERFORM)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"run": "theirs", "kind": "look", "more": 1}', b"[" * 100_000])
def test_an_order_that_cannot_be_read_disturbs_nobody(data: bytes) -> None:
    hosting = held_by(HostError("not asked"))
    assert hosting.answer(data).startswith(b'{"refused"')
    assert hosting.run == "ours"


def test_who_interrupts_a_worker_while_it_tidies_up_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """`systemctl stop`, while what a coordinator left is undone."""
    heard: list[str] = []
    monkeypatch.setattr(interrupts, "heard", lambda: len(heard))
    executor = one_by_one.OneByOne(lambda: heard.append("ours"))

    def work(others: int) -> None:
        executor.cut_short()
        heard.extend(["theirs"] * others)
        raise KeyboardInterrupt

    executor.submit(work, 0)
    executor.submit(work, 1)
    with pytest.raises(KeyboardInterrupt):
        executor.run()
    assert heard == ["ours", "ours", "theirs"]


@pytest.mark.parametrize("is_busy", [False, True])
def test_an_order_that_was_not_begun_at_the_end_is_not_begun(is_busy: bool) -> None:
    """Ctrl-C right behind an order: both have come before it is looked at, and a whole turn was measured for nobody."""
    begun: list[str] = []
    executor = one_by_one.OneByOne(lambda: None)

    def work() -> None:
        executor.submit(begun.append, "a turn")
        executor.shutdown()
        raise KeyboardInterrupt

    if is_busy:
        executor.submit(work)
    else:
        executor.submit(begun.append, "a turn")
        executor.shutdown()
    executor.run()
    assert begun == []


def test_a_host_that_does_not_notice_an_interrupt_is_interrupted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes while a thread is about to wait is noticed when that wait ends, of which some never do."""
    monkeypatch.setattr(one_by_one, "_AGAIN_S", 0.01)
    sent, noticed = threading.Semaphore(0), threading.Event()
    monkeypatch.setattr(interrupts, "heard", noticed.is_set)
    executor = one_by_one.OneByOne(sent.release)

    def wait() -> None:
        executor.cut_short()
        for _ in range(3):
            assert sent.acquire(timeout=PATIENCE_S)
        noticed.set()
        raise KeyboardInterrupt

    executor.submit(wait)
    executor.submit(executor._queue.put, None)
    executor.run()


def test_what_nobody_waits_for_is_told_where_it_fails(capsys: Any) -> None:
    failed: Future[None] = Future()
    failed.add_done_callback(worker._Leaving("node1", one_by_one.OneByOne(lambda: None))._tell)
    failed.set_exception(HostError("a mount is busy"))
    assert "virtoll: node1: not all was undone: a mount is busy" in capsys.readouterr().err


def test_a_record_that_could_not_be_read_again_is_refused() -> None:
    for record, why in (
        (sealed(1).model_copy(update={"schema_version": 99}), "a record of schema 99"),
        (sealed(1, "x" * 2_000_000), "a record of 2,000,"),
    ):
        with pytest.raises(TrialError, match=why):
            unpacked(packed([Handed(record, {})]), [trial_of(1)])


def test_an_interrupt_that_was_swallowed_leaves_no_deaf_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_by_one, "_ARRIVES_S", 0.0)
    sent: list[str] = []
    executor = one_by_one.OneByOne(lambda: sent.append("interrupt"))
    for _ in range(2):
        executor.submit(executor.cut_short)
    executor.submit(executor._queue.put, None)
    executor.run()
    assert sent == ["interrupt", "interrupt"]


@given(st.binary(max_size=200) | st.none() | st.integers() | st.just(b'{"refused": ') | st.just(b'{"refused": 3}'))
def test_any_answer_is_read_or_refused(data: object) -> None:
    for model in (Offer, Ready):
        with pytest.raises(HostError):
            read(Answer("node1", data), model)


@given(st.binary(max_size=200))
def test_any_order_is_carried_out_or_refused(data: bytes) -> None:
    assert Hosting("node1").answer(data).startswith(b'{"refused"')


@pytest.mark.parametrize("kind", ["prepare", "wire", "perform", "end"])
def test_an_order_of_no_run_is_refused(kind: str) -> None:
    said = Hosting("node1").answer(f'{{"run": "a", "kind": "{kind}"}}'.encode())
    assert b"no run is under way here" in said
