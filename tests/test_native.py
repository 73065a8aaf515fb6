"""setup/native: which binaries it builds, and when, with a stub for cargo."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parent.parent
# It makes what each package's binary is called, with what lies in rust/ as its content, and tells of the call.
CARGO = """
case $1 in
    rustc) case $2 in --print) echo "$PWD/sysroot" ;; *) echo rustc ;; esac; exit ;;
esac
echo "$*" >>calls
target=none
for word; do
    case $before in --target) target=target/$word/release; mkdir -p "$target" ;; esac
    before=$word
    name=${word#--package=}
    [ "$name" = virtoll-example ] && name=shop
    [ "$name" = "$word" ] || { cp rust/source "$target/$name"; chmod +x "$target/$name"; }
done
"""
ALWAYS = ["--package=virtoll-agent", "--package=virtoll-load"]
CONFERENCE = "--package=virtoll-confer --package=virtoll-example"


@dataclass
class Checkout:
    directory: Path

    def native(self, *options: str) -> int:
        argv = ["bash", "setup/native", *options]
        environment = {"PATH": f"{self.directory}/bin:{os.environ['PATH']}", "CARGO_TARGET_DIR": "target"}
        return subprocess.run(argv, cwd=self.directory, env=environment, capture_output=True, check=False).returncode

    def change(self, text: str) -> None:
        (self.directory / "rust/source").write_text(text)

    def calls(self) -> list[str]:
        """Of cargo, since this was asked last: the packages."""
        path = self.directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return [" ".join(word for word in line.split() if word.startswith("--package")) for line in lines]

    def built(self) -> dict[str, str]:
        """Each binary that is there, and the source it was made of."""
        places = [*(self.directory / "src/virtoll/native").glob("virtoll-*"), *(self.directory / "build").glob("*")]
        return {path.name: path.read_text() for path in places}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    for name in ("setup", "rust", "sysroot/lib/rustlib/x86_64-unknown-linux-musl/lib"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(CHECKOUT / "setup/native", tmp_path / "setup")
    (tmp_path / "setup/rust").write_text(f"#!/bin/sh\n{CARGO}")
    (tmp_path / "setup/rust").chmod(0o755)
    made = Checkout(tmp_path)
    made.change("one")
    return made


def test_all_are_built_once_and_again_when_their_sources_change(checkout: Checkout) -> None:
    assert checkout.native("--is-current") == 1
    assert checkout.native() == 0
    assert checkout.calls() == [*ALWAYS, CONFERENCE]
    assert checkout.built() == dict.fromkeys(("virtoll-agent", "virtoll-load", "virtoll-confer", "shop"), "one")
    assert checkout.native("--is-current") == checkout.native("--is-current", "--no-conference") == 0
    assert checkout.native() == 0
    assert checkout.calls() == []
    checkout.change("two")
    assert checkout.native("--is-current") == checkout.native("--is-current", "--no-conference") == 1
    assert checkout.native() == 0
    assert set(checkout.built().values()) == {"two"}


def test_without_conferences_their_participants_are_neither_built_nor_left_from_other_sources(
    checkout: Checkout,
) -> None:
    assert checkout.native("--no-conference") == 0
    assert checkout.calls() == ALWAYS, "the same calls as where all are built"
    assert checkout.built() == {"virtoll-agent": "one", "virtoll-load": "one"}
    assert (checkout.native("--is-current", "--no-conference"), checkout.native("--is-current")) == (0, 1)
    assert checkout.native() == 0
    assert "virtoll-confer" in checkout.built()
    checkout.calls()
    assert checkout.native("--no-conference") == 0
    assert checkout.calls() == []
    assert "virtoll-confer" in checkout.built(), "it is current"
    checkout.change("two")
    assert checkout.native("--no-conference") == 0
    assert checkout.built() == {"virtoll-agent": "two", "virtoll-load": "two"}


def test_one_that_ended_half_way_leaves_nothing_that_counts_as_current(checkout: Checkout) -> None:
    """Else whoever goes back to the sources before measures with binaries of the others."""
    assert checkout.native() == 0
    checkout.change("two")
    (checkout.directory / "bin").mkdir()
    copy = checkout.directory / "bin/cp"
    copy.write_text('#!/bin/sh\ncase $2 in */virtoll-load.new) exit 1 ;; esac\nPATH=${PATH#*:} exec cp "$@"\n')
    copy.chmod(0o755)
    assert checkout.native() == 1
    assert set(checkout.built().values()) == {"one", "two"}
    checkout.change("one")
    assert checkout.native("--is-current") == checkout.native("--is-current", "--no-conference") == 1


def test_of_two_at_once_one_builds_and_the_other_waits_for_it(checkout: Checkout) -> None:
    """Each moved away what the other was about to put in place (two `make` in one checkout)."""
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: checkout.native(), range(4)))
    assert codes == [0, 0, 0, 0]
    assert checkout.calls() == [*ALWAYS, CONFERENCE]


def test_what_it_does_not_know_is_refused(checkout: Checkout) -> None:
    assert checkout.native("--no-conferences") == 2
    assert checkout.calls() == []
