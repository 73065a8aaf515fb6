"""One server measures, reached by ssh (`--host`): by a double of the client that performs on fakes, or does not."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import host_double
from acl import let_write
from on_fakes import STUDY, on_fakes
from virtoll import cli
from virtoll.errors import Problem, StudyError, TrialError
from virtoll.hosts.ssh import script
from virtoll.post import orders as post_orders
from virtoll.record.store import RunDirectory
from virtoll.run import boot, by_ssh, frames, hosting, obeying, one_by_one, pushed, there
from virtoll.run.by_ssh import destination_of, host_name
from virtoll.run.doctor import MachineOffer
from virtoll.run.fleet import refusal
from virtoll.run.hosting import Hosting
from virtoll.run.one_by_one import OneByOne
from yard import PATIENCE_S

pytestmark = pytest.mark.usefixtures("undrawn")
SMALL = STUDY.replace("blocks = 2", "blocks = 2\nseed = 4")  # native (twice) and docker: six trials
HOST = "ssh://root@double.lan:2222"


class Double:
    """The command line, with the double in the place of ssh."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory, self._patch = directory, patch
        self.out = directory / "out"
        (directory / "small.toml").write_text(SMALL)

    def plays(self, at: str, deed: str) -> None:
        """At this order it does that."""
        self._patch.setenv("HOST_PLAYS", f"{at} {deed}")

    def virtoll(self, *words: str) -> int:
        with pytest.raises(SystemExit) as end:
            cli.main([*words, "--host", HOST])
        assert isinstance(end.value.code, int)
        return end.value.code

    def run(self, *options: str) -> int:
        return self.virtoll("run", str(self.directory / "small.toml"), "--out", str(self.out), *options)

    def go_on(self) -> int:
        return self.virtoll("run", str(self.out))

    @property
    def statuses(self) -> dict[str, int]:
        return dict(Counter(record.status for record in RunDirectory(self.out).records()))

    @property
    def reasons(self) -> list[str]:
        return [record.reason for record in RunDirectory(self.out).records() if record.status == "failed"]


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Double:
    host_double.put(tmp_path, monkeypatch)
    on_fakes(monkeypatch, {})
    monkeypatch.setattr(pushed, "PACKAGES", ("annotated_types",))  # what is brought is not what performs there
    monkeypatch.setattr(by_ssh, "_LAST_WORDS_S", 60.0)  # the double always ends by itself
    return Double(tmp_path, monkeypatch)


def told(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    return " ".join(f"{said.out} {said.err}".split())


# -- the whole way ----------------------------------------------------------------------------------------


def test_the_host_performs_and_the_run_is_sealed_here(double: Double, capsys: Any) -> None:
    assert double.run() == 0
    directory = RunDirectory(double.out)
    assert double.statuses == {"valid": 6}
    assert {trial.host for trial in directory.plan.trials} == {"double.lan-2222"}
    notes = directory.environment.notes
    assert notes["performer"] == pushed.Pushed.of_here().digest
    assert abs(notes["clock"]["ahead_s"]) <= notes["clock"]["within_s"], "it is the same clock"
    assert "One host, 2 blocks each: double.lan-2222" in told(capsys)


def test_a_run_goes_on_by_its_host_alone(double: Double, capsys: Any) -> None:
    double.plays("perform:2", "lost")
    assert double.run() == 1
    assert f"virtoll run {double.out} --host {HOST}" in told(capsys)
    with pytest.raises(SystemExit) as end:
        cli.main(["run", str(double.out), "--host", "ssh://root@another.lan"])
    assert end.value.code == 3
    assert "none of double.lan-2222 is there" in told(capsys)


# -- what goes wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["login", "tree", "hello", "clock:9", "look:1", "prepare:1"])
@pytest.mark.parametrize(("deed", "why"), [("lost", "the connection was lost"), ("killed", "Out of memory")])
def test_a_host_that_is_lost_before_there_is_a_plan_leaves_nothing(
    double: Double, capsys: Any, at: str, deed: str, why: str
) -> None:
    double.plays(at, deed)
    assert double.run() == 3
    assert why in told(capsys)
    assert not double.out.exists()


@pytest.mark.parametrize(
    ("at", "deed", "failed"),
    [
        ("wire:1", "lost", 0),
        ("perform:1", "lost", 1),
        ("perform:6", "lost", 1),
        *(("perform:4", deed, 1) for deed in ("killed", "half", "huge", "garbage")),
        ("end:1", "lost", 0),
    ],
)
def test_a_host_that_is_lost_in_a_trial_fails_it_and_the_trial_comes_again(
    double: Double, at: str, deed: str, failed: int
) -> None:
    double.plays(at, deed)
    assert double.run() == (0 if at == "end:1" else 1)
    assert len(double.reasons) == failed
    assert all("double.lan-2222" in reason and "\x1b" not in reason for reason in double.reasons)
    double.plays("", "")
    assert double.go_on() == 0
    assert double.statuses == {"valid": 6, **({"failed": 1} if failed else {})}


@pytest.mark.parametrize("deed", ["empty", "text", "list", "pickle"])
def test_what_a_host_hands_back_and_cannot_be_read_is_a_trial_that_failed(double: Double, deed: str) -> None:
    double.plays("perform:4", deed)
    assert double.run() == 1
    (reason,) = double.reasons
    assert "what its host handed back cannot be read" in reason
    assert "\x1b" not in reason
    assert double.statuses == {"valid": 3, "failed": 1}, "it is not asked again"
    assert not Path("/tmp/virtoll-was-run").exists(), "nothing that a host says is run"


@pytest.mark.parametrize(
    ("at", "deed"),
    [
        *(("hello", deed) for deed in ("half", "huge", "garbage", "empty", "text", "list", "another", "older")),
        *((at, deed) for at in ("clock:3", "look:1", "prepare:1") for deed in ("huge", "list", "another")),
    ],
)
def test_what_answers_must_be_what_was_brought(double: Double, capsys: Any, at: str, deed: str) -> None:
    double.plays(at, deed)
    assert double.run() == 3
    said = told(capsys)
    assert "\x1b" not in said
    assert len(said) < 10_000
    assert not double.out.exists()


def test_a_login_that_is_refused_is_told_with_its_remedy(double: Double, capsys: Any) -> None:
    double.plays("login", "refused")
    assert double.run() == 3
    said = told(capsys)
    assert "it accepts none of our keys" in said
    assert "ssh-copy-id" in said


@pytest.mark.parametrize(
    ("at", "deed"), [("login", "mute"), ("login", "swallows"), ("tree", "mute"), ("hello", "mute")]
)
def test_a_command_in_the_place_of_ours_that_never_answers_is_told(
    double: Double, capsys: Any, monkeypatch: pytest.MonkeyPatch, at: str, deed: str
) -> None:
    monkeypatch.setattr(pushed, "PACKAGES", ("annotated_types", "rich"))  # more than a pipe holds
    monkeypatch.setattr(by_ssh, "_GREETING_S", 2.0)
    monkeypatch.setattr(by_ssh, "_LAST_WORDS_S", 0.1)
    double.plays(at, deed)
    assert double.run() == 3
    # It may be that the double has not even begun: then nothing was taken either.
    assert re.search(r"nothing performs there \(nothing was (taken|heard) for 2 s\)", told(capsys))
    assert not double.out.exists()


def test_no_ssh_here(double: Double, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.hosts.local.find", lambda _name: None)
    assert double.run() == 3
    assert "cannot start ssh" in told(capsys)


# -- besides ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deed", ["lost", "list", "text"])
@pytest.mark.parametrize("verb", ["clean", "doctor"])
def test_a_host_that_cannot_clean_or_look_is_told(double: Double, capsys: Any, verb: str, deed: str) -> None:
    double.plays(f"{verb}:1", deed)
    assert double.virtoll(verb) == 3
    assert "\x1b" not in told(capsys)


@pytest.mark.parametrize("verb", ["clean", "doctor", "run"])
def test_a_host_that_gives_no_sign_of_life_while_nothing_is_measured_is_given_up(
    double: Double, capsys: Any, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """It was waited for without an end."""
    for name in ("_SILENCE_S", "_UNDO_S", "_LAST_WORDS_S"):
        monkeypatch.setattr(by_ssh, name, 2.0)
    double.plays(f"{'prepare' if verb == 'run' else verb}:1", "stopped")
    assert (double.run() if verb == "run" else double.virtoll(verb)) == 3
    assert "nothing was heard for 2 s" in told(capsys)


def test_signs_of_life_are_no_answers(double: Double) -> None:
    double.plays("prepare:1", "slow")
    assert double.run() == 0


def test_what_a_host_offers_names_each_mode() -> None:
    offer = MachineOffer({}, [])
    good = there.Examined(offer=offer, removed=[]).model_dump_json()
    assert there.Examined.model_validate_json(good).offer == offer
    bad = json.dumps({"offer": {"platforms": {"native": {"modes": {"host": "ready"}}}}, "removed": []})
    with pytest.raises(ValueError, match="not of each network mode"):
        there.Examined.model_validate_json(bad)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("ssh://root@server", "server"),
        ("ssh://server:2222", "server-2222"),
        ("ssh://me@192.0.2.7", "192.0.2.7"),
        ("ssh://root@[2001:db8::7]:22", "2001-db8-7-22"),
        ("ssh://me@realm.example@my_server:65535/", "my_server-65535"),
    ],
)
def test_a_host_is_called_by_its_server(option: str, name: str) -> None:
    assert host_name(destination_of(option)) == name


@pytest.mark.parametrize("option", ["server", "tls://server:1", "ssh://", "ssh://-oProxyCommand=x y", "ssh://a;b", ""])
def test_what_is_no_host_is_refused(option: str) -> None:
    with pytest.raises(StudyError, match=r"ssh://\[user@\]server\[:port\]"):
        destination_of(option)


@pytest.mark.parametrize(
    "option", ["ssh://root@server:99999", "ssh://server:0", "ssh://server:", "ssh://server:a", "ssh://-x", "ssh://a@-x"]
)
def test_what_ssh_would_answer_with_its_usage_is_refused(option: str) -> None:
    with pytest.raises(StudyError, match=r"ssh://\[user@\]server\[:port\]"):
        destination_of(option)


@pytest.mark.parametrize(
    "options",
    [
        ("--cluster", "tls://a:1"),
        ("--budget", "1h"),
        ("--decide", "5%"),
        ("--precision", "2%"),
        ("--target", "http://a"),
    ],
    ids=lambda options: options[0],
)
def test_what_goes_not_together_is_refused(double: Double, options: tuple[str, ...]) -> None:
    assert double.run(*options) == 2


# -- at the other end ---------------------------------------------------------------------------------------


@pytest.fixture(name="no_signals")
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody interrupts pytest."""
    monkeypatch.setattr(obeying, "OneByOne", lambda _interrupt: OneByOne(lambda: None))
    monkeypatch.setattr(one_by_one, "_ARRIVES_S", 0.0)


@pytest.mark.usefixtures("no_signals")
def test_who_hears_nothing_ends(capfd: Any) -> None:
    orders, held = os.pipe()
    try:
        obeying.perform(orders, 1, Hosting("here"), silence_s=0.01)
    finally:
        os.close(orders)
        os.close(held)
    assert "nothing was heard for 0.01 s" in capfd.readouterr().err


@pytest.mark.usefixtures("no_signals")
def test_an_order_that_is_none_is_refused_and_a_beat_is_no_order() -> None:
    orders, ours = os.pipe()
    answers, theirs = os.pipe()
    frames.write_message(ours, b"")
    frames.write_message(ours, b"{}")
    heard: list[bytes] = []

    def hear() -> None:
        heard.append(frames.read_message(answers))
        os.close(ours)

    hearing = threading.Thread(target=hear)
    hearing.start()
    obeying.perform(orders, theirs, Hosting("here"))
    hearing.join(PATIENCE_S)
    os.close(theirs)
    assert b"the order cannot be read" in heard[0]
    with pytest.raises(frames.FramesError, match="it has ended"):
        frames.read_message(answers)
    os.close(orders)
    os.close(answers)


class _Slow(Hosting):
    """A host of whom a few signs of life are heard before it answers, and who is then left alone for a while."""

    def __init__(self, until: threading.Event) -> None:
        super().__init__("here")
        self._until = until

    def answer(self, data: bytes) -> bytes:
        assert self._until.wait(PATIENCE_S)
        return super().answer(data)


@pytest.mark.usefixtures("no_signals")
def test_signs_of_life_come_while_nothing_is_measured_and_none_behind_the_answer() -> None:
    """An empty answer could not be told from one."""
    orders, ours = os.pipe()
    answers, theirs = os.pipe()
    heard: list[bytes] = []
    beaten = threading.Event()

    def order(kind: Any) -> None:
        frames.write_message(ours, hosting.Order(run="r", kind=kind).model_dump_json().encode())

    def hear() -> None:
        order("clock")
        assert [frames.read_message(answers) for _ in range(3)] == [b""] * 3
        beaten.set()
        while not heard:
            heard.extend(filter(None, [frames.read_message(answers)]))
        order("end")  # there is no run
        heard.append(frames.read_message(answers))
        os.close(ours)

    hearing = threading.Thread(target=hear)
    hearing.start()
    obeying.perform(orders, theirs, _Slow(beaten), PATIENCE_S, beat_s=0.001, beats_for=hosting.measures_nothing)
    hearing.join(PATIENCE_S)
    assert b"wall_s" in heard[0]
    assert b"no run is under way here" in heard[1]
    for thread in threading.enumerate():
        if thread.name in ("orders", "beats"):
            thread.join(PATIENCE_S)
    for end in (orders, answers, theirs):
        os.close(end)


class _Fails(Hosting):
    """A host that cannot even say why an order is not carried out."""

    def answer(self, data: bytes) -> bytes:
        raise ValueError(f"no answer to {len(data)} B")


@pytest.mark.usefixtures("no_signals")
@pytest.mark.parametrize("beat_s", [None, 0.001], ids=["measured", "generator"])
def test_who_cannot_answer_ends_and_says_why(beat_s: float | None, capfd: Any) -> None:
    """Nothing was answered, and whoever gave the order waited for as long as both gave signs of life."""
    orders, ours = os.pipe()
    answers, theirs = os.pipe()
    frames.write_message(ours, b"{}")
    obeying.perform(orders, theirs, _Fails("here"), silence_s=PATIENCE_S, beat_s=beat_s)
    assert "virtoll: an order cannot be answered: ValueError: no answer to 2 B" in capfd.readouterr().err
    os.close(ours)
    for thread in threading.enumerate():
        if thread.name in ("orders", "beats"):
            thread.join(PATIENCE_S)
    for end in (orders, answers, theirs):
        os.close(end)


def test_why_an_order_is_refused_is_said_whatever_it_names() -> None:
    """Of a file's name that is not UTF-8 no JSON could be made."""
    refused = hosting._refused(f"cannot remove {os.fsdecode(bytes([0x61, 0xFF]))}")
    assert refusal(refused) == "cannot remove a\ufffd"
    with pytest.raises(TrialError, match="cannot remove a\ufffd"):
        post_orders.unpacked(post_orders.refused(Problem(f"cannot remove {os.fsdecode(bytes([0x61, 0xFF]))}")))


def test_a_host_is_heard_beside_any_number_of_open_files(numbered_high: Callable[[int], int]) -> None:
    ours, theirs = os.pipe()
    high = numbered_high(ours)
    frames.write_message(theirs, b"a beat")
    assert frames.read_message(high, silence_s=600.0) == b"a beat"
    with pytest.raises(frames.FramesError, match="nothing was heard for 0 s"):
        frames.read_message(high, silence_s=0.0)
    os.close(theirs)
    os.close(ours)


def test_what_is_brought_is_the_same_each_time_and_all_that_performs() -> None:
    first, again = pushed.Pushed.of_here(), pushed.Pushed.of_here()
    assert first == again
    names = [name for name, _ in pushed.files()]
    assert len(names) == len(set(names))
    assert {"virtoll/native/virtoll-agent", "virtoll/run/performing.py", "virtoll/run/obeying.py"} <= set(names)
    assert not any(name.startswith("/") or ".." in name.split("/") for name in names)
    code = """if True:
        import importlib, pkgutil, sys
        import pyarrow.parquet, virtoll.run.obeying, virtoll.run.laboratory, virtoll.run.there
        for room in sorted(set(sys.modules)):
            if room.startswith("virtoll.") and hasattr(sys.modules[room], "__path__"):
                for module in pkgutil.iter_modules(sys.modules[room].__path__, room + "."):
                    if room not in ("virtoll.run", "virtoll.cli"):
                        importlib.import_module(module.name)
        print(*{name.partition(".")[0] for name, module in sys.modules.items()
                if "site-packages" in (getattr(module, "__file__", None) or "")})
    """
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=_bare())
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {*pushed.PACKAGES, "cloudpickle"}, "pyarrow can do without that one"


def _bare() -> dict[str, str]:
    """Without what an environment's own .pth files load."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def test_without_its_python_it_says_so() -> None:
    argv = script(by_ssh._START, "python9.9", "-c", "")
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "virtoll: there is no python9.9\n")


def tree(*names: str) -> bytes:
    """A tar of files of these names."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))
    return made.getvalue()


def test_what_is_laid_out_is_on_the_ledgers_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, synced = tmp_path / "state/ledger/performer.jsonl", dict[str, str]()

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[str(path)] = path.read_text() if path.is_file() else " ".join(each.name for each in path.iterdir())

    monkeypatch.setattr(os, "fsync", fsync)
    os.close(boot._announced(ledger, tmp_path / "state/performer"))
    assert str(tmp_path / "state/performer") in synced[str(ledger)]
    names = ("performer.jsonl", "ledger", "state")
    assert all(name in synced[str(above)] for name, above in zip(names, ledger.parents, strict=False))


@pytest.mark.machine
@pytest.mark.parametrize(
    ("version", "size", "data", "why"),
    [
        ("2.7 x86_64", 0, b"", "and not 2.7 x86_64"),
        ("", len(tree("a")), tree("a"), f"and not {'0' * 64}"),
        ("", 10_240_000, tree("a"), "did not come whole"),
        ("", 4096, b"x" * 4096, "invalid header"),
    ],
    ids=["version", "digest", "size", "garbage"],
)
def test_what_does_not_come_whole_is_not_run_and_nothing_is_left(
    tmp_path: Path, version: str, size: int, data: bytes, why: str
) -> None:
    words = [version or pushed.Pushed("", 0).python, "0" * 64, str(size), "host", "nonce"]
    state = tmp_path / "state"
    done = subprocess.run(
        [sys.executable, "-I", boot.__file__, *words],
        input=data,
        capture_output=True,
        env={**os.environ, "VIRTOLL_STATE": str(state)},
    )
    assert done.returncode == 1
    assert why in done.stderr.decode()
    assert [path for path in state.rglob("*") if path.is_file() or path.parent == state] in ([], [state / "ledger"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root performs")
def test_what_cannot_be_loaded_there_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    """Whole, and of its digest; but what virtoll depends on is not found, as where nothing may be mapped to be run."""
    made, state = io.BytesIO(), tmp_path / "state"
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, path in pushed.files():
            if re.fullmatch(r"virtoll/.+\.py", name):
                archive.add(path, name)
    data = made.getvalue()
    words = [pushed.Pushed("", 0).python, hashlib.sha256(data).hexdigest(), str(len(data)), "there", "nonce"]
    done = subprocess.run(
        [sys.executable, "-I", boot.__file__, *words],
        input=data,
        capture_output=True,
        env={**os.environ, "VIRTOLL_STATE": str(state)},
    )
    said = done.stderr.decode()
    assert re.fullmatch(r"virtoll: there: what was brought cannot be loaded here: ModuleNotFoundError: .*\n", said)
    assert list(state.rglob("*")) == [state / "ledger"]


@pytest.mark.machine
def test_a_place_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    words = [pushed.Pushed("", 0).python, "0" * 64, "0", "host", "nonce"]
    environment = {**os.environ, "VIRTOLL_STATE": str(open_to_all / "state")}
    done = subprocess.run([sys.executable, "-I", boot.__file__, *words], capture_output=True, env=environment)
    assert f"somebody else may write to {open_to_all}" in done.stderr.decode()
    assert list(open_to_all.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="whose it is, is asked first")
def test_who_may_write_by_an_acl_is_somebody_else_there_too(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    boot._expect_ours_alone(shared / "state")
    let_write(shared, 12345)
    with pytest.raises(OSError, match=f"somebody else may write to {shared}"):
        boot._expect_ours_alone(shared / "state")
