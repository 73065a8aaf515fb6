"""What is tuned is undone, whatever happens in between; nothing of anybody else's is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synthetic import Recipe, write_run
from virtoll.cli.verbs import clean as clean_verb
from virtoll.errors import CommandError, HostError
from virtoll.fakes import fake_environment
from virtoll.hosts import changes, tuning
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Completed
from virtoll.hosts.changes import Keeper, Setting, chosen
from virtoll.hosts.local import LocalHost
from virtoll.hosts.resources import RESOURCES
from virtoll.hosts.tuning import (
    CONGESTION,
    CPUS,
    LATENCY,
    THP,
    Awake,
    Congestion,
    Governor,
    HugePages,
    Idle,
    Knob,
    Turbo,
)
from virtoll.report.contents import method
from virtoll.report.findings import find
from virtoll.run import environment
from virtoll.run.tune import Outcome, as_json, tune, untune


def made(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def kept(where: Path, knob: str, standing: Sequence[Keeper | Setting]) -> None:
    """A knob's ledger, as the command that tuned it has left it."""
    where.mkdir(parents=True, exist_ok=True)
    kinds = [("process" if isinstance(one, Keeper) else "setting", one.name) for one in standing]
    lines = [{"entry": number, "kind": kind, "name": name} for number, (kind, name) in enumerate(kinds, 1)]
    (where / f"{knob}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


GOVERNORS = {
    f"{CPUS}/cpu{n}/cpufreq/{file}": text
    for n in (0, 1)
    for file, text in (
        ("scaling_governor", "schedutil\n"),
        ("scaling_available_governors", "performance schedutil\n"),
    )
}
BARE_METAL = {
    **GOVERNORS,
    f"{CPUS}/intel_pstate/no_turbo": "0\n",
    THP: "[always] madvise never\n",
}


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """Of the ledgers."""
    return tmp_path / "state" / "tuned"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine on which all settings are to be had, and none is right."""
    return made(tmp_path / "root", BARE_METAL)


def became(outcomes: list[Outcome]) -> list[str]:
    return [one.became for one in outcomes]


def settings(root: Path) -> list[Knob]:
    return [Governor(root), Turbo(root), HugePages(root)]


def words(root: Path) -> list[str | None]:
    files = [*(name for name in BARE_METAL if name.endswith("governor")), f"{CPUS}/intel_pstate/no_turbo", THP]
    return [chosen(root / name) for name in files]


def test_settings_are_tuned_and_put_back(root: Path, where: Path, host: LocalHost) -> None:
    assert became(tune(settings(root), host, where)) == ["done"] * 3
    assert words(root) == ["performance", "performance", "1", "madvise"]
    assert all(knob.is_in_force(where) for knob in settings(root))
    undone = untune(settings(root), host, where)
    assert became(undone) == ["undone"] * 3
    assert "scaling_governor (was schedutil, set to performance)" in str(undone[0])
    assert words(root) == ["schedutil", "schedutil", "0", "always"]
    assert list(where.iterdir()) == []


def test_a_dry_run_says_what_it_would_do_and_changes_nothing(root: Path, where: Path, host: LocalHost) -> None:
    outcomes = tune(settings(root), host, where, dry_run=True)
    assert became(outcomes) == ["would"] * 3
    assert "(was schedutil, set to performance), and 1 more like it" in outcomes[0].told
    assert words(root) == ["schedutil", "schedutil", "0", "always"]
    assert not where.exists()


def test_twice_tuned_is_said_and_undone_to_what_was_first(root: Path, where: Path, host: LocalHost) -> None:
    tune([Governor(root)], host, where)
    again = tune(settings(root), host, where)
    assert became(again) == ["tuned already", "done", "done"]
    untune(settings(root), host, where)
    assert words(root) == ["schedutil", "schedutil", "0", "always"]


def test_a_clock_that_the_user_has_pinned_is_left_alone(root: Path, where: Path, host: LocalHost) -> None:
    """`userspace` that is put back keeps the frequency that it finds: after `untune` it was the highest one."""
    pinned = root / CPUS / "cpu0/cpufreq/scaling_governor"
    pinned.write_text("userspace\n")
    assert became(tune([Governor(root)], host, where)) == ["done"]
    assert words(root)[:2] == ["userspace", "performance"]
    assert Governor(root).is_in_force(where)
    (undone,) = untune([Governor(root)], host, where)
    assert str(pinned) not in undone.told
    assert words(root)[:2] == ["userspace", "schedutil"]
    made(root, {name: "userspace\n" for name in GOVERNORS if name.endswith("governor")})
    (outcome,) = tune([Governor(root)], host, where)
    assert (outcome.became, outcome.told) == ("is so", "userspace, and not by `virtoll tune`")


def test_a_cpu_that_is_switched_off_is_in_nobodys_way(root: Path, where: Path, host: LocalHost) -> None:
    """A core's second thread, as `virtoll doctor --machine` advises: its files are there, and nothing can be read."""
    made(root, {f"{CPUS}/cpu0/online": "1\n", f"{CPUS}/cpu1/online": "0\n"})
    (root / CPUS / "cpu1/cpufreq/scaling_governor").write_text("")  # Linux says EBUSY
    assert became(tune([Governor(root)], host, where)) == ["done"]
    assert Governor(root).is_in_force(where)
    assert chosen(root / CPUS / "cpu0/cpufreq/scaling_governor") == "performance"


def test_a_cpu_that_is_switched_off_later_leaves_the_others_tuned_and_is_told(
    root: Path, where: Path, host: LocalHost
) -> None:
    """Its governor comes back with it, so what cannot be put back meanwhile is not called undone."""
    tune([Governor(root)], host, where)
    made(root, {f"{CPUS}/cpu0/online": "1\n", f"{CPUS}/cpu1/online": "0\n"})
    off = root / CPUS / "cpu1/cpufreq/scaling_governor"
    off.unlink()
    off.mkdir()  # which cannot be read either; Linux says EBUSY
    assert Governor(root).is_in_force(where)
    made(root, {f"{CPUS}/cpu0/online": "0\n"})
    (root / CPUS / "cpu0/cpufreq/scaling_governor").unlink()
    assert not Governor(root).is_in_force(where), "none is left that is tuned"
    (outcome,) = untune([Governor(root)], host, where)
    why = "it cannot be read: its CPU may be switched off, and comes back with it as it was set"
    assert outcome.told.endswith(f"left as it is, for {why}: {off}")
    (outcome,) = tune([Governor(root)], host, where)
    assert outcome.became != "failed", outcome


def test_what_was_never_tuned_is_not_undone(root: Path, where: Path, host: LocalHost) -> None:
    made(root, {THP: "always madvise [never]\n"})
    assert became(tune([HugePages(root)], host, where)) == ["is so"]
    outcomes = untune(settings(root), host, where)
    assert became(outcomes) == ["not tuned"] * 3
    assert words(root) == ["schedutil", "schedutil", "0", "never"]


def test_what_somebody_has_set_since_stays(root: Path, where: Path, host: LocalHost) -> None:
    tune([Governor(root)], host, where)
    theirs = root / CPUS / "cpu1/cpufreq/scaling_governor"
    theirs.write_text("powersave\n")
    assert not Governor(root).is_in_force(where)
    (outcome,) = untune([Governor(root)], host, where)
    assert f"left as it is, for somebody has changed it since: {theirs}" in outcome.told
    assert words(root)[:2] == ["schedutil", "powersave"]


def test_clean_does_not_call_removed_what_it_leaves(root: Path, where: Path, host: LocalHost, capsys: Any) -> None:
    tune([Governor(root)], host, where)
    theirs = root / CPUS / "cpu1/cpufreq/scaling_governor"
    theirs.write_text("powersave\n")
    lines = ledgers.clean(host, where)
    clean_verb.tell(lines)
    said = capsys.readouterr().out.splitlines()
    told = [line.partition(" of boot ")[0] for line in said]
    assert f"left as it is: setting {theirs} (was schedutil, set to performance)" in told
    assert sum(line.startswith("removed setting") for line in said) == len(said) - 1
    assert all(line.endswith("for somebody has changed it since") for line in said if line.startswith("left"))
    assert list(where.iterdir()) == []


def test_a_keeper_that_ends_before_it_is_told_to_go_on_is_told_in_its_own_words(host: LocalHost) -> None:
    """It was told as nobody reading virtoll's own output."""
    ledger: Any = SimpleNamespace(keep=lambda _kind, _name: None)
    argv = ["sh", "-c", "exec <&-; echo ready; echo no memory; exec sleep 60"]
    with pytest.raises(HostError, match="the process that keeps CPUs awake: no memory"):
        tuning._start(host, ledger, argv, "keeps CPUs awake")


def test_a_keeper_that_says_nothing_is_not_waited_for_for_ever(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_SAYS_S", 0.05)
    ledger: Any = SimpleNamespace(keep=lambda _kind, _name: None)
    with pytest.raises(HostError, match=r"the process that keeps CPUs awake: said nothing for 0\.05 s"):
        tuning._start(host, ledger, ["sleep", "1000"], "keeps CPUs awake")


def test_a_machine_that_was_booted_anew_is_not_tuned_and_what_it_is_set_to_stays(
    root: Path, where: Path, host: LocalHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Into a kernel, or by an administrator's setting, that has the same word by itself."""
    tune(settings(root), host, where)
    monkeypatch.setattr(changes, "_BOOT", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("another\n")
    assert tuning.in_force(where, root) == {}
    assert became(tune([HugePages(root)], host, where)) == ["is so"]
    outcomes = untune(settings(root), host, where)
    assert became(outcomes) == ["undone"] * 3
    assert outcomes[2].told == f"left as it is, for the machine was booted anew since: {root / THP}"
    assert words(root) == ["performance", "performance", "1", "madvise"]
    assert list(where.iterdir()) == []


def test_a_cpu_that_has_gone_is_no_error(root: Path, where: Path, host: LocalHost) -> None:
    tune([Governor(root)], host, where)
    (root / CPUS / "cpu1/cpufreq/scaling_governor").unlink()
    assert became(untune([Governor(root)], host, where)) == ["undone"]
    assert chosen(root / CPUS / "cpu0/cpufreq/scaling_governor") == "schedutil"


@pytest.mark.parametrize("knob", [Governor, Turbo, HugePages, Idle])
def test_where_the_file_is_missing_it_is_said(tmp_path: Path, where: Path, host: LocalHost, knob: type[Knob]) -> None:
    (outcome,) = tune([knob(tmp_path / "nothing")], host, where)
    assert outcome.became == "cannot"
    assert outcome.problem is not None
    assert outcome.problem.what
    assert not where.exists()


def test_an_energy_preference_that_the_governor_takes_with_it_is_put_back(
    root: Path, where: Path, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """amd-pstate's: performance stayed in force under the old governor until the machine was booted anew."""
    amd = {"scaling_governor": "powersave\n", "scaling_driver": "amd-pstate-epp\n"}
    amd |= {"energy_performance_preference": "balance_performance\n", "scaling_available_governors": "performance\n"}
    made(root, {f"{CPUS}/cpu{n}/cpufreq/{name}": text for n in (0, 1) for name, text in amd.items()})
    write = changes._write

    def kernel(path: Path, value: str) -> None:
        preference, governor = (path.with_name(name) for name in ("energy_performance_preference", "scaling_governor"))
        if path == preference and chosen(governor) == "performance" and value != "performance":
            raise HostError("Device or resource busy", where=str(path))
        if path == governor and value == "performance":
            preference.write_text("performance\n")
        write(path, value)

    monkeypatch.setattr(changes, "_write", kernel)
    assert became(tune([Governor(root)], host, where)) == ["done"]
    assert Governor(root).is_in_force(where)
    assert set(became(untune([Governor(root)], host, where))) == {"undone"}
    assert all(chosen(root / f"{CPUS}/cpu{n}/cpufreq/{name}") == amd[name].strip() for n in (0, 1) for name in amd)


def test_a_kernel_without_the_governor_is_not_asked_for_it(root: Path, where: Path, host: LocalHost) -> None:
    made(root, {name: "powersave\n" for name in GOVERNORS if name.endswith("governors")})
    (outcome,) = tune([Governor(root)], host, where)
    assert outcome.became == "cannot"
    assert "the kernel offers only: powersave" in str(outcome)


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel's file refuses root as well; anybody else fails before")
def test_where_the_kernel_refuses_the_knob_is_undone_and_the_others_go_on(
    root: Path, where: Path, host: LocalHost
) -> None:
    refused = root / CPUS / "cpu1/cpufreq/scaling_governor"
    refused.unlink()
    refused.symlink_to("/proc/sys/kernel/osrelease")  # to be read, and not to be written, by root neither
    outcomes = tune(settings(root), host, where)
    assert became(outcomes) == ["failed", "done", "done"]
    assert f"{refused}: cannot write 'performance': Permission denied" in str(outcomes[0])
    assert "-> run it as root" in str(outcomes[0])
    assert chosen(root / CPUS / "cpu0/cpufreq/scaling_governor") == "schedutil"
    assert untune([Governor(root)], host, where)[0].became == "not tuned"


def test_a_setting_that_does_not_stay_is_no_success(
    root: Path, where: Path, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the word, and keeps its own."""
    monkeypatch.setattr(changes, "_write", lambda path, value: None)
    (outcome,) = tune([Turbo(root)], host, where)
    assert outcome.became == "failed"
    assert "was told '1' and is '0'" in str(outcome)


def test_what_holds_no_word_is_not_written_to(root: Path, where: Path, host: LocalHost) -> None:
    """What was there could not be told from its line in the ledger."""
    made(root, {f"{CPUS}/intel_pstate/no_turbo": "\n"})
    (outcome,) = tune([Turbo(root)], host, where)
    assert outcome.became == "cannot"
    assert "holds no word that could be put back" in str(outcome)


KILLED_BETWEEN = """
import os, signal, sys
from pathlib import Path
from virtoll.hosts import changes, tuning
from virtoll.hosts.local import LocalHost
from virtoll.run.tune import tune
root, where, at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
real, count = changes.Setting.apply, 0
def apply(self):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self)
changes.Setting.apply = apply
tune([tuning.Governor(root)], LocalHost(), where)
"""


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("then", ["clean", "tune"])
def test_killed_in_the_middle_it_is_undone_by_clean_or_done_anew(
    root: Path, where: Path, host: LocalHost, at: int, then: str
) -> None:
    argv = [sys.executable, "-c", KILLED_BETWEEN, str(root), str(where), str(at)]
    assert subprocess.run(argv, timeout=600).returncode == -signal.SIGKILL
    assert words(root)[:2] == ["performance" if at > 1 else "schedutil", "schedutil"]
    assert not Governor(root).is_in_force(where)
    if then == "clean":
        assert len(ledgers.clean(host, where)) == at
    else:
        assert became(tune([Governor(root)], host, where)) == ["done"]
        assert words(root)[:2] == ["performance"] * 2
        assert became(untune([Governor(root)], host, where)) == ["undone"]
    assert words(root)[:2] == ["schedutil"] * 2


# -- processes that keep something up ---------------------------------------------------------------------


def test_the_idle_states_are_held_by_a_process_that_ends_with_it(tmp_path: Path, where: Path, host: LocalHost) -> None:
    root = made(tmp_path / "root", {LATENCY: ""})
    assert became(tune([Idle(root)], host, where)) == ["done"]
    assert (root / LATENCY).read_bytes() == bytes(4)
    (keeper,) = Idle(root).standing(where)
    assert isinstance(keeper, Keeper)
    assert Path(f"/proc/{keeper.pid}/fd/3").resolve() == root / LATENCY
    assert became(tune([Idle(root)], host, where)) == ["tuned already"]
    assert became(untune([Idle(root)], host, where)) == ["undone"]
    assert not keeper.holds()


def test_a_keeper_that_was_killed_is_started_anew(tmp_path: Path, where: Path, host: LocalHost) -> None:
    root = made(tmp_path / "root", {LATENCY: ""})
    tune([Idle(root)], host, where)
    (first,) = Idle(root).standing(where)
    assert isinstance(first, Keeper)
    first.end()
    assert not Idle(root).is_in_force(where)
    assert became(tune([Idle(root)], host, where)) == ["done"]
    (second,) = Idle(root).standing(where)
    assert second != first
    untune([Idle(root)], host, where)
    assert not second.holds()


def test_a_keeper_that_cannot_work_says_why(tmp_path: Path, where: Path, host: LocalHost) -> None:
    (tmp_path / "root" / LATENCY).mkdir(parents=True)
    (outcome,) = tune([Idle(tmp_path / "root")], host, where)
    assert outcome.became == "failed"
    assert "directory" in str(outcome).lower()
    assert list(where.iterdir()) == []


KILLED_BEFORE = """
import os, signal, sys
from pathlib import Path
from virtoll.hosts import tuning
from virtoll.hosts.ledger import Ledger
from virtoll.hosts.local import LocalHost
from virtoll.run.tune import tune
real = Ledger.keep
def keep(self, kind, name):
    if sys.argv[3] == "after":
        real(self, kind, name)
    print(name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
Ledger.keep = keep
tune([tuning.Idle(Path(sys.argv[1]))], LocalHost(), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_before_the_keeper_is_told_to_begin_it_ends_by_itself(
    tmp_path: Path, where: Path, host: LocalHost, when: str
) -> None:
    """It is there before its line in the ledger can be, and does nothing until that is written."""
    root = made(tmp_path / "root", {LATENCY: ""})
    argv = [sys.executable, "-c", KILLED_BEFORE, str(root), str(where), when]
    done = subprocess.run(argv, stdout=subprocess.PIPE, timeout=600, text=True)
    assert done.returncode == -signal.SIGKILL
    keeper = Keeper.named(done.stdout.strip())
    while keeper.holds():
        time.sleep(0.01)
    assert (root / LATENCY).read_bytes() == b""
    ledgers.clean(host, where)
    assert list(where.iterdir()) == []


@pytest.fixture
def sleeper() -> object:
    """Somebody's process."""
    with subprocess.Popen(["sleep", "1000"]) as somebody:
        yield somebody
        somebody.kill()


@pytest.mark.parametrize("other", ["started", "boot"])
def test_a_process_that_has_only_got_the_number_is_never_killed(
    sleeper: subprocess.Popen[bytes], host: LocalHost, other: str
) -> None:
    real = Keeper.of(sleeper.pid, "keeps CPU 0 awake")
    changed = {"started": real.started - 1} if other == "started" else {"boot": "another"}
    stale = Keeper(**{**vars(real), **changed})
    assert Keeper.named(stale.name) == stale
    assert not stale.holds()
    RESOURCES["process"].remove(host, stale.name)
    assert real.holds()
    RESOURCES["process"].remove(host, real.name)
    assert not real.holds()
    RESOURCES["process"].remove(host, real.name)  # what is not there is no error


def test_a_number_that_is_a_threads_by_now_is_nothing_to_end(host: LocalHost) -> None:
    """After a boot, say: there is no descriptor of a thread, so that `virtoll tune`, `untune` and `clean` failed."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        number = thread.native_id
        assert number is not None
        RESOURCES["process"].remove(host, Keeper(number, 1, "another", "keeps CPU 0 awake").name)
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["process", "setting"])
def test_a_line_that_is_none_is_not_undone(host: LocalHost, tmp_path: Path, kind: str) -> None:
    tmp_path.joinpath("awake.jsonl").write_text(f'{{"entry": 1, "kind": "{kind}", "name": "1"}}\n')
    with pytest.raises(HostError, match=r"1: no (process|setting) of virtoll's"):
        ledgers.clean(host, tmp_path)


def test_a_name_with_blanks_and_brackets_comes_back(tmp_path: Path) -> None:
    setting = Setting(tmp_path / "a (was b, set to c)" / "d e", "x", "y")
    assert Setting.named(setting.name) == setting
    of_before = Setting.named(setting.name.partition(" of boot ")[0])  # ledgers from before 2026-11-28 name no boot
    assert of_before == replace(setting, boot="")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"proc/sys/kernel/osrelease": "5.10.0-amd64\n"}, "before Linux 5.15"),
        ({"proc/sys/kernel/osrelease": "6.1.0\n", f"{CPUS}/smt/active": "1\n"}, "threads of one core"),
    ],
)
def test_no_loop_where_it_would_take_from_others(
    tmp_path: Path, where: Path, host: LocalHost, files: dict[str, str], told: str
) -> None:
    (outcome,) = tune([Awake(made(tmp_path / "root", files))], host, where)
    assert outcome.became == "cannot"
    assert told in str(outcome)


@pytest.mark.machine
def test_a_loop_on_each_cpu_gives_way_to_all_else(where: Path, host: LocalHost) -> None:
    if (problem := Awake().state().problem) is not None:
        pytest.skip(str(problem))
    knob = Awake()
    try:
        assert became(tune([knob], host, where)) == ["done"]
        loops = [one for one in knob.standing(where) if isinstance(one, Keeper)]
        cpus = sorted(os.sched_getaffinity(0))
        assert [os.sched_getaffinity(one.pid) for one in loops] == [{cpu} for cpu in cpus]
        assert {os.sched_getscheduler(one.pid) for one in loops} == {os.SCHED_IDLE}
        assert {os.getpriority(os.PRIO_PROCESS, one.pid) for one in loops} == {19}
        group = _group_of(loops[0]).removesuffix("/loops")
        assert group.count("/") == 1, "below another group the loops would weigh what that does"
        (is_idle,) = (one for one in knob.standing(where) if isinstance(one, Setting))
        assert str(is_idle.path).endswith(f"{group}/cpu.idle")
        assert is_idle.holds()
        is_idle.path.write_text("0")  # as in a group that systemd took the controller from, and somebody gave it again
        assert not knob.is_in_force(where)
        is_idle.path.write_text("1")
        assert became(tune([knob], host, where)) == ["tuned already"]
        os.kill(loops[0].pid, signal.SIGKILL)
        loops[0].end()
        assert not knob.is_in_force(where)
    finally:
        ended = untune([knob], host, where)
    assert became(ended) == ["undone"]
    assert not any(one.holds() for one in loops)
    assert not list(Path("/sys/fs/cgroup").glob(f"*{group}")) + list(Path("/sys/fs/cgroup").glob(f"*/*{group}"))


@pytest.mark.parametrize(("ours", "told"), [({0, 1}, True), ({1}, True), ({0, 1, 2}, False), ({2, 3}, False)])
def test_loops_on_more_cpus_than_a_run_is_given_keep_its_own_awake(
    sleeper: subprocess.Popen[bytes], where: Path, monkeypatch: pytest.MonkeyPatch, ours: set[int], told: bool
) -> None:
    """`taskset -c 1 virtoll run` was told of none, and could prove no CPU limit: no CPU was ever idle."""
    kept(where, "awake", [Keeper.of(sleeper.pid, f"keeps CPU {cpu} awake") for cpu in (0, 1)])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: ours)
    assert Awake().is_in_force(where) is told


@pytest.mark.parametrize(
    ("ours", "gives_way", "told"),
    [
        ({0, 1, 2}, True, "loops at SCHED_IDLE on CPUs 0-1 only"),
        ({0, 1, 2}, False, "loops on CPUs 0-1 that do not give way"),
        ({0, 1}, False, "loops on CPUs 0-1 that do not give way"),
        ({0, 1}, True, Awake.tuned),
    ],
)
def test_a_machine_with_some_loops_is_not_told_as_untuned(
    where: Path, monkeypatch: pytest.MonkeyPatch, ours: set[int], gives_way: bool, told: str
) -> None:
    """`taskset -c 0-1 virtoll tune awake`: a run on more CPUs was compared with one beside no loop at all."""
    loops = [Keeper.of(os.getpid(), f"keeps CPU {cpu} awake") for cpu in (0, 1)]
    is_idle = Setting(where.parent / "cpu.idle", "0", "1")
    kept(where, "awake", [is_idle, *loops])
    is_idle.path.write_text(f"{gives_way:d}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: ours)
    monkeypatch.setattr(tuning, "directory", lambda: where)
    assert tuning.in_force(where) == {"awake": told}
    warned = [one for one in environment.warnings() if f"`virtoll tune awake` has {told}: " in one]
    assert len(warned) == (told != Awake.tuned)
    assert all("`virtoll untune awake` ends them" in one for one in warned)


def test_of_loops_that_have_ended_nothing_is_told(where: Path) -> None:
    ended = replace(Keeper.of(os.getpid(), "keeps CPU 0 awake"), boot="another")
    kept(where, "awake", [ended, ended])
    assert tuning.in_force(where) == {}
    assert Awake().partly(where) == ""
    kept(where, "awake", [ended, Keeper.of(os.getpid(), f"keeps CPU {max(os.sched_getaffinity(0))} awake")])
    assert Awake().told(where).endswith(f"on CPUs {max(os.sched_getaffinity(0))} only")


def _group_of(one: Keeper) -> str:
    lines = Path(f"/proc/{one.pid}/cgroup").read_text().splitlines()
    return next(line for line in lines if line.startswith("0::/v") or ":cpu" in line).rpartition(":")[2]


# -- what is told of it -------------------------------------------------------------------------------------


def test_a_run_is_told_how_the_machine_is_tuned(tmp_path: Path, where: Path, host: LocalHost) -> None:
    root = made(tmp_path / "root", {LATENCY: "", **BARE_METAL})
    knobs: list[Knob] = [Governor(root), Idle(root)]
    assert tuning.in_force(where, root) == {}
    tune(knobs, host, where)
    try:
        assert tuning.in_force(where, root) == {"governor": Governor.tuned, "idle": Idle.tuned}
        (keeper,) = tuning.keepers(where)
        assert keeper.holds()
    finally:
        untune(knobs, host, where)
    assert tuning.in_force(where, root) == {}
    assert tuning.keepers(where) == []


def test_a_run_does_not_go_on_where_the_machine_is_tuned_otherwise() -> None:
    before, now = fake_environment(tuned={}), fake_environment(tuned={"awake": "loops"})
    with pytest.raises(HostError, match=r"tuned\.awake: was None, is loops"):
        environment.require_same(before, now)


def test_the_report_says_how_the_machine_was_tuned(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Recipe(seed=1, blocks=3))
    assert not any("tuned" in item for item in method(find(run)))
    path = run / "environment.json"
    document = json.loads(path.read_text())
    document["comparable"]["tuned"] = {"turbo": Turbo.tuned, "awake": Awake.tuned}
    path.write_text(json.dumps(document))
    (item,) = (item for item in method(find(run)) if "tuned" in item)
    assert f"for all arms alike: {Turbo.tuned}; {Awake.tuned}." in item


def test_the_same_for_programs(root: Path, where: Path, host: LocalHost) -> None:
    told = as_json(tune([Turbo(root), Idle(root)], host, where, dry_run=True))
    turbo, idle = told["knobs"]
    assert turbo.keys() == {"name", "became", "told", "problem"}
    assert (turbo["name"], turbo["became"], turbo["problem"]) == ("turbo", "would", None)
    assert idle["problem"].keys() == {"what", "where", "remedy"}


@pytest.mark.parametrize(("now", "then"), [("bbr", "cubic"), ("cubic", "cubic"), ("reno", "reno")])
def test_congestion_control_that_paces_is_changed_and_put_back(now: str, then: str, tmp_path: Path) -> None:
    """With bbr single requests of 10 kB through Squid waited for 0.1 s, some four of them a second."""
    offered = {f"{Path(CONGESTION).parent}/tcp_available_congestion_control": "reno bbr cubic\n"}
    root = made(tmp_path, {CONGESTION: f"{now}\n", **offered})
    changes = Congestion(root).changes()
    for change in changes:
        change.apply()
    assert chosen(root / CONGESTION) == then
    assert len(changes) == (now != then)


def test_turbo_is_switched_by_the_driver_that_is_at_work(root: Path, where: Path, host: LocalHost) -> None:
    """Of intel_pstate that is off (Linux, admin-guide/pm/intel_pstate.rst: status) no_turbo is there, and says EAGAIN;
    `doctor --machine` told of the other switch, and named this command.
    """
    switch = root / CPUS / "intel_pstate/no_turbo"
    switch.unlink()
    switch.mkdir()  # which cannot be read either
    made(root, {f"{CPUS}/cpufreq/boost": "1\n"})
    assert became(tune([Turbo(root)], host, where)) == ["done"]
    assert chosen(root / CPUS / "cpufreq/boost") == "0"


@pytest.mark.parametrize("own", ["bbr", "cubic"])
def test_a_container_is_not_told_as_tuned_where_its_labs_have_the_machines_congestion_control(
    own: str, root: Path, where: Path, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`unshare --net` gives the first namespace's, wherever it is: a container that was tuned had labs that paced, and
    reports without the warning, which said that the machine was tuned.
    """
    made(root, {CONGESTION: f"{own}\n"})
    monkeypatch.setattr(tuning, "congestion", lambda _root: "bbr")
    (one,) = tune([Congestion(root)], host, where)
    assert one.became == ("failed" if own == "bbr" else "cannot")
    assert one.problem is not None
    assert "on the machine itself: sysctl net.ipv4.tcp_congestion_control=cubic" in one.problem.remedy
    assert chosen(root / CONGESTION) == own
    assert tuning.in_force(where, root) == {}
    monkeypatch.setattr(tuning, "congestion", lambda _root: "cubic")
    tune([Congestion(root)], host, where)
    monkeypatch.setattr(tuning, "congestion", lambda _root: "bbr")
    assert tuning.in_force(where, root) == {}


@pytest.mark.parametrize(("may", "told"), [(True, "bbr"), (False, "cubic")])
def test_congestion_control_is_told_as_what_is_made_now_has_it(
    may: bool, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def run(_host: LocalHost, argv: Sequence[str]) -> Completed:
        asked.append(argv)
        if not may:
            raise CommandError("exit 1 from: unshare: Operation not permitted")
        return Completed(tuple(argv), 0, b"bbr\n", b"")

    monkeypatch.setattr(LocalHost, "run", run)
    monkeypatch.setattr(tuning, "chosen", lambda _path: "cubic")
    assert tuning.congestion() == told
    assert asked == [["unshare", "--net", "cat", f"/{CONGESTION}"]]


def test_congestion_control_that_is_not_to_be_had_is_told(tmp_path: Path) -> None:
    assert "is not there" in str(Congestion(tmp_path).state().problem)
    offered = {f"{Path(CONGESTION).parent}/tcp_available_congestion_control": "reno bbr\n"}
    problem = Congestion(made(tmp_path, {CONGESTION: "bbr\n", **offered})).state().problem
    assert problem is not None
    assert "the kernel offers only: reno bbr" in problem.what
