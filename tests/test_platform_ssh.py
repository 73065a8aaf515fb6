"""Platform ssh, whole, by a double of the client: what is brought there, run there, lost and removed there."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import ssh_double
from ssh_double import DF, SAYS, Played
from virtoll.agent import Source, StreamError
from virtoll.binaries import binary
from virtoll.errors import HostError, PlatformError, Problem
from virtoll.hosts import ledger as ledgers
from virtoll.hosts.base import Confinement
from virtoll.hosts.local import LocalHost
from virtoll.hosts.ssh import MADE, script
from virtoll.images import contents, rootfs
from virtoll.images.base import AGENT, Image
from virtoll.lab.base import Lab, Site
from virtoll.lab.client import Client
from virtoll.monitor import outside_sources
from virtoll.networks.base import common_kind, network_modes
from virtoll.offers import Port
from virtoll.platforms import ssh
from virtoll.platforms.base import Instance, is_elsewhere
from virtoll.platforms.ssh import SshMachine, SshSettings
from virtoll.platforms.ssh_machine import Machine, look
from virtoll.probes.base import Place
from virtoll.record.model import NOT_LIMITED, Arm, PlannedTrial
from virtoll.study.limits import Limits
from virtoll.trial import audit, deployer, limits, proofs
from virtoll.trial.notes import Notes

DESTINATION = "root@192.0.2.7"
SYNC = """#!/bin/sh
for path in here there/image; do [ -e "$ROOM/$path" ] && echo "$path" >>"$ROOM/synced"; done; :
"""
LIMITS = Limits(vcpus=1, memory_bytes=64 * 1024**2)


@pytest.fixture(name="played")
def _played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return ssh_double.play(tmp_path / "played", monkeypatch)


@pytest.fixture(name="lab")
def _lab(tmp_path: Path) -> Iterator[Lab]:
    """Of which nothing is wired: no arm of these is in it."""
    host, directory = LocalHost(), tmp_path / "lab"
    directory.mkdir()
    with ledgers.opened(host, tmp_path / "ledger", "run") as ledger:
        site = Site(host, "vt-none", "198.18.1.2", frozenset({0}))
        yield Lab(ledger, "ab12", site, site, site, "virtoll/none", directory)


@pytest.fixture(name="image")
def _image(tmp_path: Path) -> Image:
    """With the agent, and nothing else."""
    directory = tmp_path / "image"
    agent = directory / f"rootfs{AGENT}"
    agent.parent.mkdir(parents=True)
    shutil.copy(binary("virtoll-agent"), agent)
    contents.note(directory, "rootfs")
    rootfs.write_manifest(directory, {"versions": {}})
    return Image("small", "ab" * 32, directory)


@pytest.fixture(name="platform")
def _platform(played: Played) -> SshMachine:
    return SshMachine(SshSettings(destination=DESTINATION, directory=played.place))


@contextmanager
def deployed(lab: Lab, image: Image, platform: SshMachine, name: str = "b01-t0001") -> Iterator[Instance]:
    directory = lab.directory / name
    directory.mkdir()
    mode = network_modes()["direct"]
    kind = common_kind("ssh", platform.kinds, mode)
    assert not isinstance(kind, Problem)
    with (
        mode().attach(lab, kind, (Port(80),)) as attachment,
        platform.deploy(lab, image, LIMITS, attachment, directory) as instance,
    ):
        yield instance


# -- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (SshSettings(), "no machine is named"),
        (SshSettings(destination="-oProxyCommand=x"), "is no machine that ssh could reach"),
        (SshSettings(destination="h", directory="/"), "is no directory"),
        (SshSettings(destination="h", directory="tmp"), "is no directory"),
        (SshSettings(destination="h", directory="/var/../etc"), "is no directory"),
        (SshSettings(destination="h", address="no such name"), "no IPv4 address"),
    ],
)
def test_settings_that_name_nothing_are_refused_before_anybody_is_asked(
    played: Played, settings: SshSettings, what: str
) -> None:
    (problem,) = SshMachine(settings).check(LocalHost())
    assert what in problem.what
    assert problem.remedy
    assert all("-G" in words for words in played.asked), "that is asked of ssh's configuration, here"


def test_without_a_client_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("virtoll.platforms.ssh.find", lambda _program: None)
    (problem,) = SshMachine(SshSettings(destination="h")).check(LocalHost())
    assert problem.remedy == "apt-get install openssh-client"


def test_what_only_a_login_tells_is_asked_when_a_run_begins(played: Played, platform: SshMachine) -> None:
    host = LocalHost()
    assert platform.check(host) == []
    assert not [words for words in played.asked if "-G" not in words], "nobody is asked before"
    assert DESTINATION in platform.untried(host)
    assert DESTINATION in platform.announced()
    assert "nobody else" in platform.announced()
    assert platform.try_out(host) == []
    played.becomes("fails", SAYS["unknown"])
    (problem,) = platform.try_out(host)
    assert "its host key is not known here" in problem.what
    assert played.left == []


def test_a_machine_of_another_kernel_is_another(played: Played, platform: SshMachine) -> None:
    before = platform.versions(LocalHost())
    assert before["ssh"].startswith("OpenSSH_9.2p1")
    played.becomes("machine", "riscv64")
    assert platform.versions(LocalHost()) != before


# -- a run ------------------------------------------------------------------------------------------------------------


def test_an_instance_runs_there_and_leaves_nothing(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    with platform.session(lab, image):
        for number in (1, 2):
            with deployed(lab, image, platform, f"b01-t{number}") as instance:
                assert instance.is_running()
                assert instance.agent.facts()["cpus"] >= 1
                assert abs(instance.agent.clock().offset_ns) < 10**9, "the double is this machine"
                assert instance.attachment.endpoint_address == "127.0.0.1"
                assert instance.attachment.generator_address == "192.0.2.1"
                assert instance.attachment.reaches(Port(8080)), "all of the machine's ports are its own"
                assert instance.facts["limits"] == NOT_LIMITED
                assert instance.facts["machine"]["disk_free_bytes"] == 10 * 2**30
                assert is_elsewhere(instance)
                ran = instance.agent.run([f"{played.place}/run-ab12-{platform._tag}/instance/root{AGENT}", "--version"])
                assert ran.returncode == 0
            assert not instance.is_running()
        assert played.left == ["virtoll"]
    assert played.left == []
    unpacked = [words for words in played.asked if "--extract" in words[-1]]
    assert len(unpacked) == 1, "the image is brought once"


def test_an_image_that_is_kept_is_brought_once_for_all_runs(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    kept = SshMachine(replace(platform.settings, keep=True))
    assert "is kept there" in kept.announced()
    first = image.built
    for tag in ("ab12", "cd34", "ef56"):
        run = replace(lab, run_tag=tag)
        if tag == "ef56":  # it was built again, with Debian's packages of another day
            rootfs.write_manifest(image.directory, {"versions": {"nginx": "1.22.1-9+deb12u12"}})
            image = replace(image)
        with kept.session(run, image), deployed(run, image, kept, tag) as instance:
            assert instance.is_running()
    assert {path.name for path in Path(played.place).iterdir()} == {"images", MADE}
    assert {path.name for path in (Path(played.place) / "images").iterdir()} == {first, image.built}
    assert len([words for words in played.asked if "--extract" in words[-1]]) == 2


def test_what_is_made_there_is_in_the_ledger_before(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    with platform.session(lab, image):
        (entry,) = ledgers.standing(lab.ledger.path.read_text())
        assert (entry.kind, entry.name) == ("ssh-directory", f"{DESTINATION} {platform._place(lab)}")
        made = next(at for at, words in enumerate(played.asked) if "mkdir -p -m 700" in words[-1])
        looked = next(at for at, words in enumerate(played.asked) if "virtoll yes" in words[-1])
        assert looked < made
    assert ledgers.standing(lab.ledger.path.read_text()) == []


def test_nothing_is_made_in_what_somebody_else_made_meanwhile(
    played: Played, lab: Lab, image: Image, platform: SshMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*words: Any) -> Machine:
        found = look(*words)
        Path(played.place).symlink_to(played.directory)
        return found

    monkeypatch.setattr("virtoll.platforms.ssh.look", looked)
    with pytest.raises(HostError, match="is somebody else's"), platform.session(lab, image):
        pytest.fail("it is a link")


def test_a_directory_of_the_users_own_stays(played: Played, lab: Lab, image: Image, platform: SshMachine) -> None:
    Path(played.place).mkdir()
    with platform.session(lab, image):
        pass
    assert played.left == ["virtoll"]
    assert list(Path(played.place).iterdir()) == []


def test_no_room_there_is_told_before_anything_is_brought(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    played.becomes("df", DF.format(free=1))
    with pytest.raises(HostError, match=r"the image takes .*, and 1 KiB are free at"), platform.session(lab, image):
        pytest.fail("there is no room")
    assert not [words for words in played.asked if "--extract" in words[-1]]
    assert played.left == []


def test_an_image_that_cannot_be_unpacked_leaves_nothing(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    played.lacks("tar")
    tar = played.directory / "bin/tar"
    tar.write_text("#!/bin/sh\necho 'tar: No space left on device' >&2; exit 2\n")
    tar.chmod(0o755)
    with pytest.raises(HostError, match=r"could not be unpacked there: .*No space left"), platform.session(lab, image):
        pytest.fail("there is no room")
    assert played.left == []


@pytest.mark.parametrize("said", ["unreachable", "key", "unknown", "changed"])
def test_a_session_that_cannot_begin_is_told(
    played: Played, lab: Lab, image: Image, platform: SshMachine, said: str
) -> None:
    played.becomes("fails", SAYS[said])
    with pytest.raises(HostError) as caught, platform.session(lab, image):
        pytest.fail("nobody lets us in")
    assert caught.value.problem.where == f"ssh {DESTINATION}"
    assert ledgers.standing(lab.ledger.path.read_text()) == [], "nothing was made"


def test_an_instance_that_does_not_come_up_is_told_in_the_machines_words(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    mount = played.directory / "bin/mount"
    mount.write_text("#!/bin/sh\necho 'mount: permission denied.' >&2; exit 32\n")
    with platform.session(lab, image):
        with pytest.raises(PlatformError) as caught, deployed(lab, image, platform):
            pytest.fail("there is no overlay")
        assert "mount: permission denied" in caught.value.problem.what
        assert "keys" not in str(caught.value), "it is the machine's refusal, and not sshd's"
    assert played.left == []


def test_an_agent_of_another_protocol_is_told(played: Played, lab: Lab, image: Image, platform: SshMachine) -> None:
    agent = image.rootfs / AGENT.removeprefix("/")
    hello = '{"id":0,"ok":{"protocol":1}}'
    agent.write_text(f"#!/bin/sh\nread -r _\nprintf '== virtoll-agent ==\\n%s\\n' '{hello}'\nexec sleep 1000\n")
    with (
        platform.session(lab, image),
        pytest.raises(PlatformError, match="speaks protocol 1, the controller"),
        deployed(lab, image, platform),
    ):
        pytest.fail("that agent is another's")


def test_a_connection_that_is_lost_fails_a_trial_and_not_the_next(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    """As OpenSSH tells of it; what is there of the first goes before the second begins."""
    with platform.session(lab, image):
        with deployed(lab, image, platform, "first") as instance:
            played.becomes("loses", SAYS["silent"])
            while instance.is_running():
                time.sleep(0.01)
            with pytest.raises(StreamError, match=r"the connection was lost .*not responding") as caught:
                instance.agent.facts()
            assert DESTINATION in caught.value.problem.where
            played.becomes("fails", SAYS["unreachable"])
        with pytest.raises(HostError, match="it cannot be reached"), deployed(lab, image, platform, "second"):
            pytest.fail("it is not back yet")
        there = Path(platform._place(lab)) / "instance"
        assert there.exists()
        for what in ("fails", "loses"):
            played.recovers(what)
        with deployed(lab, image, platform, "third") as instance:
            assert instance.is_running()
    assert played.left == []


def test_a_machine_that_is_gone_at_the_end_is_told_and_stays_in_the_ledger(
    played: Played, lab: Lab, image: Image, platform: SshMachine
) -> None:
    with pytest.raises(ledgers.ElsewhereError, match="it cannot be reached"), platform.session(lab, image):
        played.becomes("fails", SAYS["unreachable"])
    assert [entry.kind for entry in ledgers.standing(lab.ledger.path.read_text())] == ["ssh-directory"]
    played.recovers("fails")  # and the ledger's own end removes it
    lab.ledger.close()
    assert played.left == []
    lab.ledger.open()


def test_what_a_session_could_not_remove_goes_before_the_next(
    played: Played, lab: Lab, image: Image, platform: SshMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost while the image is brought, and still when it is to be removed; in the same lab it begins anew."""

    def lost(*_: object) -> None:
        played.becomes("fails", SAYS["unreachable"])
        raise HostError("it was lost")

    with monkeypatch.context() as patch:
        patch.setattr(SshMachine, "_bring", lost)
        with pytest.raises(ledgers.ElsewhereError), platform.session(lab, image):
            pytest.fail("there is no image")
    with pytest.raises(HostError, match="it cannot be reached"), platform.session(lab, image):
        pytest.fail("it is not back yet")
    played.recovers("fails")
    with platform.session(lab, image), deployed(lab, image, platform) as instance:
        assert instance.is_running()
    assert played.left == []
    assert ledgers.standing(lab.ledger.path.read_text()) == []


def test_two_arms_on_one_machine_do_not_share_a_directory(lab: Lab, platform: SshMachine) -> None:
    other = SshMachine(replace(platform.settings, address="127.0.0.1"))
    assert platform._place(lab) != other._place(lab)
    assert platform._shared(lab).control != other._shared(lab).control


# -- what a trial makes of it -----------------------------------------------------------------------------------------


@pytest.fixture(name="notes")
def _notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path, lambda _phase: None)


@pytest.fixture(name="instance")
def _instance(played: Played, lab: Lab, image: Image, platform: SshMachine) -> Iterator[Instance]:
    with platform.session(lab, image), deployed(lab, image, platform) as instance:
        yield instance


def trial() -> PlannedTrial:
    arm = Arm(label="ssh+direct", platform="ssh", network="direct", settings={"destination": DESTINATION})
    return PlannedTrial(id="b01-t0001", block=1, position=1, arm=arm, condition={})


def test_its_limits_are_told_untried_and_never_count_as_proved(
    instance: Instance, notes: Notes, tmp_path: Path
) -> None:
    def another(_number: int) -> Any:
        pytest.fail("no second instance fills that machine's memory")

    proved: limits.Proved = {}
    place = Place(instance, cast(Client, None), (), another)
    limits.prove_beside(proved, place, trial(), notes)
    limits.prove_on(proved, instance, trial(), notes)
    assert len(notes.checks) == 8
    assert {check.passed for check in notes.checks} == {None}
    assert all(f"not tried: {NOT_LIMITED}" == check.detail for check in notes.checks)
    assert list(proved.values()) == [set()]
    proofs.of_cpu_limit(notes, instance, cast(Any, None))
    assert notes.checks[-1].passed is None


def test_what_it_has_is_audited_beside_what_the_study_asks_for(instance: Instance, notes: Notes) -> None:
    audit.first(set(), trial(), instance, notes)
    told = notes.audit
    assert told is not None
    assert told.found["disk_limit"] == f"{NOT_LIMITED}: 10240 MiB are free"
    assert all(told.found[key].startswith(NOT_LIMITED) for key in ("cpu_quota", "memory_limit", "processes_limit"))
    assert told.missing["host.seccomp"] == "nothing of it is seen from outside"
    assert told.found["cpus"]


def test_nothing_of_it_is_watched_from_outside(instance: Instance, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.monitor.monitor.group_exists", lambda _group: False)
    monkeypatch.setattr("virtoll.monitor.monitor.cgroup_sources", lambda name, *_: [Source(name, "keyed", "/none")])
    names = {source.name.partition(".")[0] for source in outside_sources(lab, instance)}
    assert names == {"generator", "origin", "host", "monitor"}


def test_who_asks_where_its_cost_is_booked_is_told_that_nobody_knows(instance: Instance) -> None:
    with pytest.raises(PlatformError, match="nothing of it is seen from outside"):
        _ = instance.accounting.cgroup


def test_its_generator_stands_outside_of_the_labs_namespaces(
    instance: Instance, lab: Lab, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confined(_lab: Lab, *, outside: bool = False) -> Confinement:
        return Confinement(netns=None if outside else "lab")

    monkeypatch.setattr(deployer, "generator_confinement", confined)
    with ExitStack() as stack:
        made = deployer.Deployer(lab, cast(Any, None), stack)
        (lab.directory / "d").mkdir()
        assert made.client("d", of=instance).confinement.netns is None
        assert made.client("d").confinement.netns == "lab"


def test_an_image_is_kept_by_its_name_only_when_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sync").write_text(SYNC)
    (tmp_path / "bin/sync").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("ROOM", str(tmp_path))
    subprocess.run(script(ssh._KEEP, str(tmp_path / "here"), str(tmp_path / "there/image")), check=True)
    assert (tmp_path / "synced").read_text().split() == ["here", "there/image"]
