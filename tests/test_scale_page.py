"""What docs/SCALE.md shows: its commands are virtoll's, its scripts are scripts, and its certificates are taken."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from virtoll.cli.parser import make_parser
from virtoll.run.trusted import security

PAGE = (Path(__file__).parent.parent / "docs" / "SCALE.md").read_text(encoding="utf-8")
SCRIPTS = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
MANIFESTS = re.findall(r"^```yaml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """The words of each command of virtoll's, wherever on a line it stands."""
    text = PAGE.replace("\\\n", " ")
    found = [
        shlex.split(match.partition("#")[0].partition(" || ")[0].removesuffix("&").strip())
        for match in re.findall(r"^[^`|\n]*?\b(virtoll (?:run|worker|scheduler) .*)$", text, flags=re.MULTILINE)
        if "--tls" in match and "`" not in match
    ]
    return [*found, *([words[0], *words[1:]] for words in map(command_of, MANIFESTS))]


def command_of(manifest: str) -> list[str]:
    (container,) = yaml.safe_load(manifest)["spec"]["template"]["spec"]["containers"]
    return [str(word) for word in container["command"]]


def test_its_commands_are_virtolls() -> None:
    found = commands()
    assert len(found) >= 9
    for words in found:
        assert words[0] == "virtoll"
        arguments = make_parser().parse_args(words[1:])
        assert arguments.tls is not None


@pytest.mark.parametrize("script", SCRIPTS, ids=[f"script {at}" for at in range(1, len(SCRIPTS) + 1)])
def test_its_scripts_are_scripts(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_its_manifest_mounts_what_it_names() -> None:
    pod = yaml.safe_load(MANIFESTS[0])["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_its_certificates_are_taken(tmp_path: Path) -> None:
    (script,) = [each for each in SCRIPTS if "openssl" in each]
    subprocess.run(["bash", "-eu"], input=script, cwd=tmp_path, capture_output=True, text=True, check=True)
    security("tls://node1.lan:8786", tmp_path / "node1")
    shown = subprocess.run(
        ["openssl", "x509", "-in", "node1/cert.pem", "-noout", "-ext", "subjectAltName"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "DNS:node1.lan, IP Address:192.0.2.11" in shown.stdout
