"""The ssh client, and what it and the machine behind it say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ssh_double
from ssh_double import Played
from virtoll.errors import HostError
from virtoll.hosts import ledger as ledgers
from virtoll.hosts import ssh
from virtoll.hosts.local import LocalHost
from virtoll.hosts.ssh import Ssh
from virtoll.platforms import ssh_machine
from virtoll.run.alone import alone, remove_all_left

DESTINATION = "root@192.0.2.7"
TOLD = """\
Last login: yesterday
virtoll uid 0
virtoll system Linux
virtoll machine x86_64
virtoll kernel 6.1.0-13-amd64
virtoll seen_from 192.0.2.1
virtoll cpus 4
virtoll memory_kib 2048
virtoll processes 4194304
virtoll processes 15000
virtoll processes unlimited
virtoll disk_kib 1024
virtoll end .
"""


@pytest.fixture(name="played")
def _played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    return ssh_double.play(tmp_path / "played", monkeypatch)


def there() -> Ssh:
    return Ssh(LocalHost(), DESTINATION)


@pytest.mark.parametrize("name", ["root@192.0.2.7", "cloud", "ssh://root@[2001:db8::1]:2222", "a.example", "me@host"])
def test_a_destination_is_what_ssh_takes(name: str) -> None:
    assert ssh.flaw(name) == ""


@pytest.mark.parametrize(
    "name", ["-oProxyCommand=touch /tmp/x", "-V", "a b", "a\nb", "$(id)", "`id`", "x" * 256, "'", ";"]
)
def test_no_destination_becomes_an_option_or_a_command(name: str) -> None:
    assert "no machine" in ssh.flaw(name)


def test_the_client_asks_nobody_and_believes_no_host() -> None:
    argv = there().argv(["sh", "-c", 'echo "$1"', "sh", "it's; $HOME"])
    options = [argv[at + 1] for at, word in enumerate(argv) if word == "-o"]
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10", "ServerAliveInterval=10"} <= {*options}
    assert argv[-3:-1] == ["--", DESTINATION], "whatever it is called, it is no option"
    assert argv[-1] == """sh -c 'echo "$1"' sh 'it'"'"'s; $HOME'"""
    assert argv[argv.index("-S") + 1] == "none"
    assert not any("ConfigFile" in word or word == "-F" for word in argv), "the user's configuration holds"


def test_a_sockets_path_is_no_pattern_of_openssh() -> None:
    argv = Ssh(LocalHost(), DESTINATION, Path("/tmp/a%h/s")).argv(["true"])
    assert argv[argv.index("-S") + 1] == "/tmp/a%%h/s"


def test_a_command_is_run_there_with_its_words(played: Played) -> None:
    done = there().run(["sh", "-c", 'cat; echo "[$1]"', "sh", "a  b"], stdin=b"in ")
    assert done.stdout == b"welcome to this machine\nin [a  b]\n"
    assert len(played.asked) == 1


def test_a_command_that_fails_there_is_told_in_its_words(played: Played) -> None:
    with pytest.raises(HostError, match="no such thing") as caught:
        there().run(["sh", "-c", "echo no such thing >&2; exit 3"])
    assert caught.value.problem.where == f"ssh {DESTINATION}"
    assert there().run(["sh", "-c", "exit 3"], check=False).returncode == 3
    assert played.asked


@pytest.mark.parametrize(
    ("said", "what", "remedy"),
    [
        ("unreachable", "it cannot be reached", "sshd listens"),
        ("refused", "it cannot be reached", "sshd listens"),
        ("nameless", "its name is not known", "ssh/config"),
        ("key", "accepts none of our keys", "ssh-copy-id root@192.0.2.7"),
        ("unknown", "host key is not known here", "log in once by hand"),
        ("changed", "host key has changed", "ssh-keygen -R"),
        ("lost", "the connection was lost", "see that it is up"),
        ("silent", "the connection was lost", "see that it is up"),
        ("closed", "the connection was lost", "see that it is up"),
        ("config", "refuses its configuration", "mend it"),
    ],
)
def test_what_openssh_gives_up_for_is_told_with_its_remedy(played: Played, said: str, what: str, remedy: str) -> None:
    played.becomes("fails", ssh_double.SAYS[said])
    with pytest.raises(HostError) as caught:
        there().run(["true"])
    problem = caught.value.problem
    assert what in problem.what
    assert remedy in problem.remedy
    assert ssh_double.SAYS[said].split()[-1].strip(".") in problem.what, "its own words are there, too"


@pytest.mark.parametrize(
    ("said", "ours", "roots"),
    [
        ("key", ("a key of yours there", "in ~/.ssh/config"), ("a key of root's there", "in ~root/.ssh/config")),
        ("nameless", ("Host in ~/.ssh/config",), ("Host in ~root/.ssh/config",)),
        ("unknown", ("by hand, compare",), ("by hand, as root (virtoll runs as root), compare",)),
        ("changed", ("the new key: ssh root@",), ("the new key, as root (virtoll runs as root): ssh root@",)),
    ],
)
def test_keys_and_configuration_are_of_whoever_runs_virtoll(
    monkeypatch: pytest.MonkeyPatch, said: str, ours: tuple[str, ...], roots: tuple[str, ...]
) -> None:
    for user, words in ((1000, ours), (0, roots)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        remedy = ssh.meaning(DESTINATION, ssh_double.SAYS[said]).remedy
        assert all(word in remedy for word in words), remedy
        assert ("root's" in remedy or "as root" in remedy or "~root" in remedy) is (user == 0)


@given(said=st.text(max_size=3000))
def test_whatever_openssh_says_a_sentence_comes_of_it(said: str) -> None:
    problem = ssh.meaning(DESTINATION, said)
    assert problem.what
    assert problem.remedy
    assert len(problem.what) < 1000


def test_a_connection_is_shared_and_ends_with_its_block(played: Played, tmp_path: Path) -> None:
    control = tmp_path / "s"
    shared = Ssh(LocalHost(), DESTINATION, control)
    with shared.connected():
        assert control.exists()
        shared.run(["true"])
    first, second = played.asked
    assert "ControlMaster=yes" in first
    assert "ControlMaster=no" in second
    assert first[first.index("-S") + 1] == second[second.index("-S") + 1] == str(control)


def test_a_connection_that_cannot_be_made_is_told(played: Played, tmp_path: Path) -> None:
    played.becomes("fails", ssh_double.SAYS["key"])
    with pytest.raises(HostError, match="accepts none of our keys"), Ssh(LocalHost(), "h", tmp_path / "s").connected():
        pytest.fail("there is none")


def test_the_socket_of_an_earlier_connection_is_not_this_ones(played: Played, tmp_path: Path) -> None:
    """A killed client leaves its socket: whoever only waits for one would go on before it is let in."""
    shared = Ssh(LocalHost(), DESTINATION, tmp_path / "s")
    with shared.connected():
        pass
    assert (tmp_path / "s").exists()
    played.becomes("fails", ssh_double.SAYS["key"])
    with pytest.raises(HostError, match="accepts none of our keys"), shared.connected():
        pytest.fail("there is none")


def test_who_inherits_the_clients_words_holds_nobody_up(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ProxyCommand's child outlives the client, and holds its stderr; only the words are waited for."""
    client, held = tmp_path / "client/ssh", tmp_path / "held"
    client.parent.mkdir()
    said = ssh_double.SAYS["refused"]
    client.write_text(f"#!/bin/sh\necho '{said}' >&2\nsetsid sleep 1000 &\necho $! >{held}\nexit 255\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    ended, waited = threading.Event(), threading.Event()

    def end_it() -> None:
        if not ended.wait(600):
            waited.set()
        os.kill(int(held.read_text()), signal.SIGKILL)

    late = threading.Thread(target=end_it)
    late.start()
    try:
        with pytest.raises(HostError, match="it cannot be reached"), Ssh(LocalHost(), "h", tmp_path / "s").connected():
            pytest.fail("nobody lets us in")
    finally:
        ended.set()
        late.join()
    assert not waited.is_set()
    assert played.asked == []


def test_a_socket_that_no_kernel_takes_is_refused(tmp_path: Path) -> None:
    long = Ssh(LocalHost(), DESTINATION, tmp_path / ("s" * 100))
    with pytest.raises(HostError, match="longer than"), long.connected():
        pytest.fail("it is too long")


# -- a directory there, and the ledger ------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "safe"), [
    ("/var/lib/virtoll-remote/run-1", True), ("/a/b", True), ("/a", False), ("/", False), ("a/b", False), ("", False),
    ("/a/../b", False), ("/a/b c", False), ("/a/./b", False), ("/a//b", False), ("/a/b\n", False), ("/a/b*", False),
])  # fmt: skip
def test_only_what_is_surely_ones_own_is_removed(path: str, safe: bool) -> None:
    assert ssh.is_safe(path) == safe


def test_a_directory_there_is_in_the_ledger_and_goes(played: Played, tmp_path: Path) -> None:
    directory = f"{played.place}/run-1"
    ledger = ledgers.Ledger(LocalHost(), tmp_path / "ledger/a.jsonl").open()
    with ledger.owning("ssh-directory", ssh.named(DESTINATION, directory)):
        (entry,) = ledgers.standing((tmp_path / "ledger/a.jsonl").read_text())
        assert (entry.kind, entry.name) == ("ssh-directory", f"{DESTINATION} {directory}")
        there().run(ssh.script('mkdir -p "$1/sub"', directory))
        assert played.left == ["virtoll"]
        with pytest.raises(HostError, match="exists already"):
            ledger.keep("ssh-directory", ssh.named(DESTINATION, directory))
    ledger.close()
    assert played.left == ["virtoll"], "whoever made the directory above"


def test_what_is_above_goes_where_virtoll_made_it(played: Played) -> None:
    place = Path(played.place)
    (place / "run-1").mkdir(parents=True)
    (place / ssh.MADE).touch()
    ssh.remove_directory(LocalHost(), ssh.named(DESTINATION, f"{place}/run-1"))
    assert played.left == []


def test_what_is_above_stays_where_something_is_kept_in_it(played: Played) -> None:
    place = Path(played.place)
    for name in ("run-1", "images", ssh.MADE):
        (place / name).mkdir(parents=True)
    ssh.remove_directory(LocalHost(), ssh.named(DESTINATION, f"{place}/run-1"))
    assert {path.name for path in place.iterdir()} == {"images", ssh.MADE}


def test_who_works_in_a_directory_is_found_where_a_link_leads_to_it(played: Played) -> None:
    """The kernel tells a process's root by the path without links."""
    real, link = played.directory / "data", played.directory / "lib"
    (real / "virtoll/run-1/instance/root").mkdir(parents=True)
    link.symlink_to(real)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as working:
        root = f"/proc/{working.pid}/root -> {real.resolve()}/virtoll/run-1/instance/root"
        played.becomes("root", f"lrwxrwxrwx 1 root root 0 Jan 1 00:00 {root}")
        listing = played.directory / "bin/ls"
        listing.write_text(f"#!/bin/sh\n[ ! -e /proc/{working.pid}/exe ] || cat {played.directory}/root\n")
        try:
            ssh.remove_directory(LocalHost(), ssh.named(DESTINATION, f"{link}/virtoll/run-1"))
            found = working.wait(600)
        finally:
            working.kill()
    assert found == -signal.SIGKILL
    assert not (real / "virtoll/run-1").exists()


def test_a_directory_whose_parent_has_gone_is_gone(played: Played) -> None:
    ssh.remove_directory(LocalHost(), ssh.named(DESTINATION, f"{played.place}/none/run-1"))
    assert played.left == []


def test_a_place_whose_real_path_no_script_could_find_again_is_refused(played: Played) -> None:
    odd, link = played.directory / "two words", played.directory / "plain"
    odd.mkdir()
    link.symlink_to(odd)
    (problem,) = ssh_machine.look(there(), f"{link}/virtoll").problems("there", f"{link}/virtoll")
    assert "its real path is not plain letters" in problem.what


def test_who_cannot_be_reached_is_told_and_the_ledger_kept(played: Played, tmp_path: Path) -> None:
    path, gone = tmp_path / "ledger/dead.jsonl", tmp_path / "gone"
    directory = Path(played.place) / "run-1"
    directory.mkdir(parents=True)
    gone.mkdir()
    path.parent.mkdir(mode=0o700)
    things = [("ssh-directory", f"{DESTINATION} {directory}"), ("directory", str(gone))]
    lines = [{"entry": at, "kind": kind, "name": name} for at, (kind, name) in enumerate(things, 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    played.becomes("fails", ssh_double.SAYS["unreachable"])
    with pytest.raises(ledgers.ElsewhereError, match="it cannot be reached") as caught:
        ledgers.clean(LocalHost(), path.parent)
    assert "delete this ledger" in caught.value.problem.remedy
    assert not gone.exists(), "all else has gone"
    assert [entry.kind for entry in ledgers.standing(path.read_text())] == ["ssh-directory"]
    played.recovers("fails")
    assert ledgers.clean(LocalHost(), path.parent) == [f"ssh-directory {DESTINATION} {directory}"]
    assert not directory.exists()
    assert not path.exists()


def test_a_run_is_not_held_up_by_what_is_left_on_a_machine_that_is_gone(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    path = tmp_path / "state/ledger/dead.jsonl"
    path.parent.mkdir(parents=True)
    entry = {"entry": 1, "kind": "ssh-directory", "name": f"{DESTINATION} {played.place}/run-1"}
    path.write_text(json.dumps(entry) + "\n")
    played.becomes("fails", ssh_double.SAYS["unreachable"])
    with alone(LocalHost()) as removed:
        assert removed == []
    assert "it cannot be reached" in capsys.readouterr().err
    assert path.exists()


def test_what_is_left_on_a_machine_that_is_gone_keeps_nothing_else_from_being_removed(
    played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a machine left tuned, or a cache full, by it."""
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    made = tmp_path / "made"
    ledgers_of = {
        "ledger": ("ssh-directory", f"{DESTINATION} {played.place}/run-1"),
        "tuned": ("directory", str(made)),
    }
    made.mkdir()
    for name, (kind, what) in ledgers_of.items():
        (tmp_path / "state" / name).mkdir(parents=True)
        line = {"entry": 1, "kind": kind, "name": what}
        (tmp_path / "state" / name / "dead.jsonl").write_text(json.dumps(line) + "\n")
    partial = tmp_path / "cache/films/.film.partial"
    partial.mkdir(parents=True)
    partial.with_name(".film.lock").touch()
    played.becomes("fails", ssh_double.SAYS["unreachable"])
    with pytest.raises(HostError, match="it cannot be reached") as caught:
        remove_all_left(LocalHost())
    assert f"removed: directory {made}" in str(caught.value)
    assert f"removed: what a killed virtoll was making: {partial}" in str(caught.value)
    assert not made.exists()
    assert not partial.exists()
    assert (tmp_path / "state/ledger/dead.jsonl").exists()


def test_what_resists_here_is_no_matter_of_another_machine(played: Played, tmp_path: Path) -> None:
    path = tmp_path / "ledger/dead.jsonl"
    path.parent.mkdir(mode=0o700)
    played.becomes("fails", ssh_double.SAYS["unreachable"])
    things = [("ssh-directory", f"{DESTINATION} {played.place}/run-1"), ("sorcery", "x")]
    lines = [{"entry": at, "kind": kind, "name": name} for at, (kind, name) in enumerate(things, 1)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(HostError) as caught:
        ledgers.clean(LocalHost(), path.parent)
    assert not isinstance(caught.value, ledgers.ElsewhereError)


@pytest.mark.parametrize("name", ["-V /a/b", "root@h", "root@h /", "root@h /a/../..", ""])
def test_a_ledgers_line_that_is_none_of_ours_removes_nothing(played: Played, name: str) -> None:
    with pytest.raises(HostError, match="no directory on another machine"):
        ssh.remove_directory(LocalHost(), name)
    assert played.asked == []


# -- what is found there ----------------------------------------------------------------------------------------------


def test_what_a_machine_tells_of_itself() -> None:
    told = ssh_machine.parse(TOLD)
    assert told is not None
    assert (told.uid, told.system, told.machine, told.kernel) == (0, "Linux", "x86_64", "6.1.0-13-amd64")
    assert (told.cpus, told.memory_bytes, told.processes, told.disk_free_bytes) == (4, 2**21, 15000, 2**20)
    assert told.seen_from == "192.0.2.1"
    assert told.lacks == ()


def test_what_a_machine_does_not_tell_is_missing() -> None:
    told = ssh_machine.parse("virtoll cpus many\nvirtoll memory_kib -1\nvirtoll seen_from 2001:db8::1\nvirtoll end .\n")
    assert told is not None
    assert (told.uid, told.cpus, told.memory_bytes, told.processes, told.disk_free_bytes) == (None,) * 5
    assert told.seen_from == ""
    assert ssh_machine.parse("virtoll uid 0\n") is None, "it was cut short"


@given(text=st.text(max_size=2000))
@example(text="virtoll uid " + "9" * 5000 + "\nvirtoll end .\n")
@example(text="virtoll place " + "\x1b" * 5000 + "\nvirtoll end .\n")
def test_whatever_a_machine_prints_is_bounded(text: str) -> None:
    told = ssh_machine.parse(text)
    if told is not None:
        json.dumps(told.found)
        assert all(len(str(value)) <= 400 for value in told.found.values())


def test_this_machine_is_looked_at(played: Played) -> None:
    told = ssh_machine.look(there(), played.place)
    assert told.problems("", played.place) == []
    assert told.cpus
    assert told.memory_bytes
    assert told.processes
    assert told.disk_free_bytes == 10 * 2**30
    assert told.seen_from == "192.0.2.1"
    assert played.left == [], "nothing is made for it"


@pytest.mark.parametrize(
    ("what", "text", "expected"),
    [
        ("uid", "1000", "we are not root there"),
        ("machine", "aarch64", "its processor is aarch64, and agent and image are for"),
    ],
)
def test_a_machine_that_will_not_do(played: Played, what: str, text: str, expected: str) -> None:
    played.becomes(what, text)
    (problem,) = ssh_machine.look(there(), played.place).problems("there", played.place)
    assert expected in problem.what
    assert problem.remedy


def test_a_machine_that_lacks_programs(played: Played) -> None:
    for program in ("tar", "unshare"):
        played.lacks(program)
    (problem,) = ssh_machine.look(there(), played.place).problems("there", played.place)
    assert problem.what == "there is no tar, unshare"


def test_a_place_that_is_a_link_is_not_used(played: Played) -> None:
    Path(played.place).symlink_to("/tmp")
    (problem,) = ssh_machine.look(there(), played.place).problems("there", played.place)
    assert problem.what == f"{played.place} cannot be used: it is a link"


@pytest.mark.parametrize(("mode", "says"), [(0o777, "drwxrwxrwx"), (0o1777, "drwxrwxrwt"), (0o757, "drwxr-xrwx")])
def test_a_place_that_others_may_write_to_is_not_used(played: Played, mode: int, says: str) -> None:
    Path(played.place).mkdir()
    Path(played.place).chmod(mode)
    (problem,) = ssh_machine.look(there(), played.place).problems("there", played.place)
    assert f"others may write to {played.place} ({says}" in problem.what
    assert "`directory`" in problem.remedy


def test_a_place_that_others_could_replace_is_not_used(played: Played) -> None:
    above = Path(played.place).parent
    above.chmod(0o777)
    (problem,) = ssh_machine.look(there(), played.place).problems("there", played.place)
    assert f"others may write to {above} (" in problem.what
    above.chmod(0o755)
    (played.directory / "link").symlink_to(above)
    above.chmod(0o777)
    place = f"{played.directory}/link/virtoll"
    assert ssh_machine.look(there(), place).problems("there", place), "behind a link, too"


def test_where_everybody_may_make_something_nothing_is_kept(played: Played) -> None:
    above = Path(played.place).parent
    above.chmod(0o1777)
    told = ssh_machine.look(there(), played.place)
    assert told.problems("there", played.place) == []
    (problem,) = told.problems("there", played.place, kept=True)
    assert f"everybody may write to {above}" in problem.what


@pytest.mark.parametrize(
    ("step", "flaw"),
    [
        ("drwxr-xr-x 0 0 /a", ""),
        ("drwxr-xr-x. 0 0 /a", ""),
        ("drwxrwxr-x 0 0 /a", ""),
        ("drwxrwxr-x 0 50 /a", "others may write to /a"),
        ("drwxrwxr-x+ 0 0 /a", "others may write to /a (drwxrwxr-x+)"),  # by an ACL
        ("drwxr-xr-x+ 0 0 /a", ""),
        ("drwxr-xr-x 1000 0 /a", "/a belongs to user 1000"),
        ("lrwxrwxrwx 0 0 /a", ""),
        ("lrwxrwxrwx 1000 0 /a", "/a belongs to user 1000"),
        ("  /a", "not told"),
    ],
)
def test_who_else_may_write_is_read_from_ls(step: str, flaw: str) -> None:
    told = ssh_machine.parse(f"virtoll step {step}\nvirtoll end .\n", "/a/b")
    assert told is not None
    assert flaw in told.open_to if flaw else told.open_to == ""


def test_a_shell_that_says_nothing_is_told(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_machine, "_LOOK", "echo this account is not available; exit 1")
    with pytest.raises(HostError, match="this account is not available"):
        ssh_machine.look(there(), played.place)


def test_what_ssh_config_says_is_asked_of_ssh(played: Played) -> None:
    assert there().configured("hostname") == "127.0.0.1"
    assert there().configured("proxyjump") == ""
