"""setup/install on machines that are not like this one, played by stubs of the commands it asks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
FILES = ("setup", "pyproject.toml", "setup.py", "rust/Cargo.toml")

# Stubs see which release they play in $RELEASE: a file of "package version" lines, what it offers. $IN_THE_WAY has
# "package=what" pairs: what is installed and would be removed for it. Who has dpkg's lock installs $THEIRS meanwhile.
STUBS = {
    "apt-get": """
        echo "apt-get $*" >>"$CALLS"
        for pair in $IN_THE_WAY; do
            case " $* " in
                *" --no-remove "*" ${pair%=*} "*) echo "E: Packages need to be removed" >&2; exit 100 ;;
                *" ${pair%=*} "*) echo "Remv ${pair#*=} [1:1.0] [${pair#*=}:amd64 ]" ;;
            esac
        done
        case "$*" in
            *update*) exit "${UPDATE_FAILS:-0}" ;;
            *--simulate*) exit "${INSTALL_FAILS:-0}" ;;
        esac
        [ -x /usr/sbin/policy-rc.d ] && echo "services held" >>"$CALLS"
        [ -e "$INSTALLED" ] || echo "${THEIRS-}" >"$INSTALLED"
        case "$*" in
            *install*) echo ours >>"$INSTALLED"; exit "${INSTALL_FAILS:-0}" ;;
        esac""",
    "apt-cache": """
        case $1 in
            policy)
                [ "$LC_ALL" = C ] && told=Candidate || told=Installationskandidat
                echo "$2:"; sed -n "s/^$2 /  $told: /p" "$RELEASE" ;;
            pkgnames) cut -d' ' -f1 "$RELEASE" | grep "^$2" ;;
        esac""",
    "dpkg-query": '[ ! -e "$INSTALLED" ] || sed "/ /!s/^/installed /" "$INSTALLED"',
    "dpkg": 'echo "dpkg $*" >>"$CALLS"',
    "systemctl": ":",
    "uname": 'echo "${UNAME:-Linux x86_64}"',
    "python3": "exit 1",
    "cargo": "exit 1",
}
TOOLS = """
    bash sh env cat cut sed grep sort comm tail head mkdir rm chmod dirname xargs echo sha256sum find
"""

BOOKWORM = "python3 3.11.2-1+b1\npython3-venv 3.11.2\ncargo-web 1.96\nrustc-web 1.96\nqemu-utils 7.2\nlxc 5.0\n"
JAMMY = (
    "python3 3.10.6-1\npython3-venv 3.10.6\npython3.11 3.11.0\npython3.11-venv 3.11.0\n"
    "cargo 1.75\nrustc 1.75\ncargo-1.80 1.80\ncargo-1.89 1.89\nrustc-1.89 1.89\ncargo-1.9 1.9\nqemu-utils 6.2\n"
)


pytestmark = pytest.mark.machine

_PLAY = """
    user=$1; shift
    setpriv=$(command -v setpriv); ls=$(command -v ls)
    mount -t tmpfs tmpfs /usr/sbin || exit 99
    [ -z "$1" ] || echo "$1" >/usr/sbin/policy-rc.d; shift
    "$setpriv" --reuid="$user" env -i "$@"; code=$?
    "$ls" /usr/sbin
    exit $code
"""


@dataclass
class Machine:
    """A machine that exists in stubs."""

    directory: Path
    release: str

    def install(self, as_user: int = 0, policy: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run setup/install with only the stubs in PATH, in a mount namespace where /usr/sbin is empty, but for a
        ``policy`` of which services may start.
        """
        (self.directory / "release").write_text(self.release)
        play = {"PATH": str(self.directory / "bin"), "CALLS": str(self.directory / "calls")}
        play |= {"RELEASE": str(self.directory / "release"), "INSTALLED": str(self.directory / "installed")}
        play |= environment
        command = ["sh", "-c", _PLAY, "sh", str(as_user), policy]
        command += [*(f"{key}={value}" for key, value in play.items()), "bash", "setup/install"]
        return subprocess.run(
            ["unshare", "--mount", *command],
            cwd=self.directory / "checkout",
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> str:
        return (self.directory / "calls").read_text()


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="virtoll-setup-") as name:  # not in pytest's, where nobody else gets to
        Path(name).chmod(0o755)
        yield stubbed(Path(name))


def stubbed(tmp_path: Path) -> Machine:
    for name in FILES:
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (CHECKOUT / name).is_dir() else shutil.copy
        copy(CHECKOUT / name, tmp_path / "checkout" / name)
    (tmp_path / "checkout" / "build").mkdir()
    (tmp_path / "checkout" / "build").chmod(0o777)
    (tmp_path / "bin").mkdir()
    for name in TOOLS.split():
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    for name, script in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return Machine(tmp_path, BOOKWORM)


def test_another_architecture_is_refused(machine: Machine) -> None:
    done = machine.install(UNAME="Linux aarch64")
    assert done.returncode == 3
    assert "this machine is Linux aarch64\n    -> virtoll needs Linux on x86_64" in done.stderr


def test_no_network_is_said_and_nothing_is_installed(machine: Machine) -> None:
    done = machine.install(UPDATE_FAILS="100")
    assert done.returncode == 3
    assert "apt-get update failed\n    -> see that the mirror can be reached" in done.stderr
    assert "install" not in machine.calls


@pytest.mark.parametrize(
    ("release", "first"),
    [
        (BOOKWORM, "gcc libc6-dev python3 python3-venv cargo-web rustc-web"),
        (JAMMY, "gcc libc6-dev python3.11 python3.11-venv cargo-1.89 rustc-1.89"),
    ],
)
def test_each_release_gets_its_own_python_and_rust(machine: Machine, release: str, first: str) -> None:
    machine.release = release
    done = machine.install(INSTALL_FAILS="100")
    assert f"setup: packages  installing {first}\n" in done.stdout
    assert f"could not install {first}\n    -> see that the mirror" in done.stderr
    assert f"install {first}" in machine.calls


def test_services_are_held_while_packages_are_installed_and_no_longer(machine: Machine) -> None:
    done = machine.install(INSTALL_FAILS="100")
    assert "services held" in machine.calls
    assert "policy-rc.d" not in done.stdout


def test_what_one_that_was_killed_left_is_removed_whatever_is_missing(machine: Machine) -> None:
    """Services of whatever anybody installed did not start until packages of virtoll's were missing once more."""
    (mark,) = re.findall(r'^mark="(.*)"$', (CHECKOUT / "setup/install").read_text(), re.MULTILINE)
    for policy, stays in ((f"# {mark}", False), ("# the machine's own", True)):
        done = machine.install(policy=policy, UPDATE_FAILS="100")
        assert ("policy-rc.d" in done.stdout.split()) == stays
    done = machine.install(as_user=65534, policy=f"# {mark}")
    assert "not root, and packages are missing" in done.stderr


def test_what_somebody_installs_while_it_waits_for_him_starts_now_and_at_boot(machine: Machine) -> None:
    machine.install(THEIRS="postgresql")
    waiting, _, after = machine.calls.partition(" check\n")
    assert "services held" not in waiting
    assert re.match(r"apt-get .* install .*\nservices held\ndpkg -L ours\n", after)


def test_what_was_removed_and_comes_again_does_not_start_at_boot(machine: Machine) -> None:
    """Its settings were left, so that it was taken for installed before."""
    machine.install(THEIRS="config-files ours")
    assert "dpkg -L ours\n" in machine.calls


def test_only_what_the_release_has_is_asked_for(machine: Machine) -> None:
    done = machine.install()
    assert "setup: packages  installing lxc qemu-utils\n" in done.stdout
    assert "--no-remove" in machine.calls
    assert "no Python of 3.11 or later with venv" in done.stderr  # these packages bring nothing
    skipped = (machine.directory / "checkout/build/setup/not-offered").read_text().split()
    assert "user-mode-linux" in skipped
    assert not {"lxc", "qemu-utils"} & set(skipped)


def test_what_does_not_go_with_what_is_installed_is_left_out_and_the_rest_installed(machine: Machine) -> None:
    """busybox is on most machines; busybox-static would take its place, and nothing at all was installed."""
    machine.release += "busybox-static 1.35\ndocker.io 20.10\n"
    done = machine.install(IN_THE_WAY="busybox-static=busybox docker.io=docker-ce-cli")
    assert "setup: packages  installing lxc qemu-utils\n" in done.stdout
    assert "setup: left out  busybox-static: apt-get would remove busybox for it; `virtoll doctor` tells" in done.stdout
    assert "setup: left out  docker.io: apt-get would remove docker-ce-cli for it" in done.stdout
    assert "no Python of 3.11 or later with venv" in done.stderr
    noted = machine.directory / "checkout/build/setup"
    assert (noted / "not-fitting").read_text().split() == ["busybox-static", "docker.io"]
    assert "user-mode-linux" in (noted / "not-offered").read_text().split()
    assert "left out" not in machine.install(IN_THE_WAY="busybox-static=busybox").stdout, "it is told once"
    os.utime(noted / "not-fitting", (0, 0))  # something else is installed since, or on offer
    assert "setup: packages  installing busybox-static docker.io lxc qemu-utils\n" in machine.install().stdout


def test_nothing_is_removed_for_what_building_needs_either(machine: Machine) -> None:
    done = machine.install(IN_THE_WAY="cargo-web=rustup")
    assert done.returncode == 3
    assert "setup: no cargo-web here: apt-get would remove rustup for it\n" in done.stderr
    assert "-> apt-get install cargo-web, if you can do without what it removes" in done.stderr
    assert "services held" not in machine.calls


def test_who_is_not_root_is_told_what_is_missing(machine: Machine) -> None:
    done = machine.install(as_user=65534)
    assert done.returncode == 3
    assert "not root, and packages are missing: gcc libc6-dev python rust" in done.stderr
    assert "-> run it with sudo" in done.stderr
