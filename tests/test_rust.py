"""The tests of rust/, by cargo: they wait for clocks and sockets for most of their time, as others do meanwhile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from virtoll.hosts.local import end_session

CHECKOUT = Path(__file__).parent.parent


def test_what_cargo_tests_holds(tmp_path: Path) -> None:
    """Alone: ``setup/rust cargo test``. Their files are below this test's own directory, and of nobody's inventory."""
    argv = ["setup/rust", "cargo", "test", "--quiet", "--locked", "--no-fail-fast"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (tmp_path / "told").open("wb") as told:
        process = subprocess.Popen(
            argv, cwd=CHECKOUT, env=environment, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait()
        finally:
            end_session(process)
    said = (tmp_path / "told").read_text()
    assert process.returncode == 0, said
    assert said.count("test result: ok.") > 5, said
