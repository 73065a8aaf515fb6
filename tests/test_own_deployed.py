"""`virtoll run` of services and loads of one's own, on the platforms of this machine, as its user meets it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import leaks
import ocimake
import undrawn
from ocimake import Entry, Made, directory, docker_files, layer, write_archive
from virtoll.hosts.local import LocalHost
from virtoll.images import unpack
from virtoll.platforms.base import platforms
from virtoll.record.model import TrialRecord
from virtoll.record.store import RunDirectory

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        not all(shutil.which(program) for program in unpack.PACKAGES), reason="apt-get install skopeo umoci"
    ),
]
CHECKOUT = Path(__file__).parent.parent
PLATFORMS = ("native", "docker", "lxc", "uml", "qemu-tcg")
STUDY = """\
name = "shop"
blocks = 2
noise_floor = false
[limits]
memory = "256 MiB"
"""
SHOP = """\
[service]
name = "own"
image = "oci:shop.tar"
ports = ["8080/tcp"]
ready = "/health"
"""
# One user: of two, one may wait for its first answer while the other has many, where many share the CPUs.
HTTP = """\
[load]
name = "http"
path = "/health"
connections = 1
time_limit = "300 ms"
warm_up = "0 s"
"""
# Of one that has to become ready: as long as other services of the tests have (`patience`).
PATIENT = 'ready_within = "8 min"\n'
NATIVE = '[[arms]]\nplatform = "native"\n'
BUSYBOX = "/bin/busybox"
# A server whose page /cgi-bin/die is its last; its shell begins elsewhere than it ends, as many an entrypoint does.
TILL = f"""\
cd /www
export OPEN=yes
{BUSYBOX} httpd -f -h /www -p 8080 &
echo $! >/tmp/till
wait
echo the till is closed
exit 3
"""


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    code: int
    said: str
    path: Path

    @property
    def records(self) -> list[TrialRecord]:
        return RunDirectory(self.path).records()

    def logs(self, name: str) -> list[str]:
        return [(self.path / "trials" / record.trial.id / name).read_text() for record in self.records]


def run(where: Path, *parts: str) -> Ran:
    """The study in a directory of its own, with its own state; the image cache is the machine's."""
    (where / "shop.toml").write_text("".join((STUDY, *parts)))
    before = leaks.snapshot()
    argv = [*undrawn.ARGV, "run", str(where / "shop.toml"), "--out", str(where / "out")]
    environment = {**os.environ, "VIRTOLL_STATE": str(where / "state")}
    done = subprocess.run(argv, cwd=where, env=environment, capture_output=True, text=True)
    tags = [path.stem.rpartition("-")[2] for path in (where / "state" / "ledger").glob("*.jsonl")]
    for tag in tags:
        leaks.assert_nothing_left(before, tag)
    return Ran(done.returncode, done.stdout + done.stderr, where / "out")


def is_ready(name: str) -> bool:
    platform = platforms()[name]()
    return not (platform.check(LocalHost()) or platform.try_out(LocalHost()))


def save(where: Path, made: Made) -> None:
    write_archive(where / "shop.tar", docker_files({"shop:1": made}, legacy=False))


def save_shop(where: Path) -> None:
    if not ocimake.SHOP_SERVER.exists():
        pytest.skip("run setup/native: it builds build/shop")
    save(where, ocimake.shop())


def till(command: Sequence[str] = ("sh", "-c", TILL)) -> Made:
    """No accounts, no links: busybox, and what it serves."""
    die = f"#!{BUSYBOX} sh\n{BUSYBOX} kill $({BUSYBOX} cat /tmp/till)\n"
    entries = [
        Entry("bin/busybox", ocimake.static_busybox(), mode=0o755),
        directory("www"),
        Entry("www/index.html", b"come in\n"),
        Entry("www/cgi-bin/die", die.encode(), mode=0o755),
    ]
    return Made([layer(*entries)], {"Entrypoint": [BUSYBOX], "Cmd": list(command), "Env": ["NAME=till"]})


def test_the_same_image_is_the_same_service_on_every_platform(tmp_path: Path) -> None:
    save_shop(tmp_path)
    there = [name for name in PLATFORMS if is_ready(name)]
    arms = "".join(f'[[arms]]\nplatform = "{name}"\n' for name in there if name != "docker")
    arms += '[[arms]]\nplatform = "docker"\nnetwork = ["routed", "published"]\n' if "docker" in there else ""
    greeting = 'greeting = "from the study\'s own file"\nmost_object_bytes = 1000\n'
    (tmp_path / "own.toml").write_text(greeting)
    files = 'files = { "/etc/shop.toml" = "own.toml" }\nenv = { SHOP_NAME = "mine" }\n'
    ran = run(tmp_path, SHOP, PATIENT, files, HTTP, arms)
    assert [record.reason for record in ran.records if record.status != "valid"] == [], ran.said
    assert ran.code == 0, ran.said
    assert len(ran.records) == 2 * (len(there) + ("docker" in there))
    asked = {
        "argv": ["/usr/local/bin/shop", "/etc/shop.toml"],
        "cwd": "/srv/shop",
        "uid": 1500,
        "gid": 1500,
        "groups": [1500, 1600],
        "environment": {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOSTNAME": "instance",
            "HOME": "/srv/shop",
            "SHOP_PORT": "8080",
            "SHOP_NAME": "mine",
        },
    }
    for record in ran.records:
        seen = {key: value for key, value in record.facts["process"].items() if value is not None}
        assert seen == {key: asked[key] for key in seen}, record.trial.arm.label
        assert {"argv", "uid", "gid", "groups"} <= seen.keys()
        if record.trial.arm.platform == "native":
            assert seen == asked
    assert all("listening on port 8080\n/health 200" in log for log in ran.logs("log.txt"))
    assert {check.passed for record in ran.records for check in record.checks if "own" in check.name} == {True}


def test_one_that_exits_at_once_is_told_with_its_code_and_its_log(tmp_path: Path) -> None:
    save_shop(tmp_path)
    ran = run(tmp_path, SHOP, 'env = { SHOP_PORT = "none" }\n', HTTP, NATIVE)
    assert ran.code == 1
    assert {record.status for record in ran.records} == {"failed"}
    for record in ran.records:
        assert "own ended at once with code 2; its log ends with:\nshop: SHOP_PORT=none is no port" in record.reason
    assert set(ran.logs("log.txt")) == {"shop: SHOP_PORT=none is no port\n"}


def test_one_that_is_never_ready_is_told_with_what_it_answered_and_its_log(tmp_path: Path) -> None:
    save_shop(tmp_path)
    service = SHOP.replace("/health", "/nothing") + 'ready_within = "1 s"\n'
    ran = run(tmp_path, service, HTTP, NATIVE)
    assert ran.code == 1
    for record in ran.records:
        assert record.status == "failed"
        if "/nothing 404" in record.reason:
            assert "own did not become ready within 1 s: status 404 for /nothing; its log ends with" in record.reason
        else:  # on a busy machine its time may be over before it is asked
            assert "own did not listen on port 8080 within 1 s; its log ends with" in record.reason


def test_one_that_was_ready_and_died_makes_its_trial_invalid(tmp_path: Path) -> None:
    save(tmp_path, till())
    ran = run(tmp_path, SHOP.replace("/health", "/"), PATIENT, HTTP.replace("/health", "/cgi-bin/die"), NATIVE)
    assert ran.code == 1
    for record, log in zip(ran.records, ran.logs("log.txt"), strict=True):
        assert record.status == "invalid", record.reason
        assert "answered correctly after: " in record.reason
        # A busy machine may leave its shell no time to end as well. Others that were at work may say more.
        if "own lived to the end: it ended with code 3; see the trial's log.txt" in record.reason:
            assert "the till is closed\n" in log


def test_a_load_from_an_image_without_accounts_drives_a_service_that_changes_itself(tmp_path: Path) -> None:
    save(tmp_path, till())
    fetch = f"{BUSYBOX} wget -qO- http://{{address}}:{{port}}/"
    # It sleeps besides: of a few milliseconds a busy machine's generator may have used its CPU up.
    asks = f"for i in 0 1 2 3 4; do {fetch} || exit 1; done; {BUSYBOX} id; {BUSYBOX} sleep 1; echo did 5"
    load = f"""\
[load]
name = "command"
image = "oci:shop.tar"
seed = ["{BUSYBOX}", "sh", "-c", "{fetch}"]
run = ["{BUSYBOX}", "sh", "-c", "{asks}"]
time_limit = "1 s"
warm_up = "0 s"
env = {{ PATH = "/bin" }}
work = {{ read = 'did (\\d+)', unit = "visit" }}
"""
    there = '[[arms]]\nplatform = "docker"\n' if is_ready("docker") else ""
    ran = run(tmp_path, SHOP.replace("/health", "tcp"), PATIENT, load, NATIVE, there)
    assert ran.code == 0, ran.said
    for record, said in zip(ran.records, ran.logs("load.txt"), strict=True):
        assert record.measured is not None
        assert record.measured.window.work == 5
        assert "uid=65534 gid=65534" in said
        assert said.count("come in\n") == 6
        assert record.facts["process"]["cwd"] in ("/www", None)


def test_the_pages_example_of_a_load_runs(tmp_path: Path) -> None:
    """Of pgbench, smaller; and a number that it does not print fails the trial with what it printed."""
    page = (CHECKOUT / "docs/OWN.md").read_text()
    (load,) = [text for text in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "pgbench" in text]
    load = load.replace('"postgresql-client", ', "").replace('"10", "postgres"', '"1", "postgres"')
    load = load.replace('time_limit = "10 s"', 'time_limit = "3 s"\nwarm_up = "0 s"')
    memory = '[service]\nname = "postgres"\ncommit = "asynchronous"\n'  # a busy disk may take seconds for a sync
    ran = run(tmp_path, memory, load, NATIVE)
    assert ran.code == 0, ran.said
    for record in ran.records:
        assert record.measured is not None
        assert record.measured.window.work > 0
        assert record.measured.window.values["latency_ms"] > 0
        assert record.measured.unit == "transaction"
    (tmp_path / "out").rename(tmp_path / "before")
    ran = run(tmp_path, memory, load.replace("latency average", "p99"), NATIVE)
    assert ran.code == 1
    for record, said in zip(ran.records, ran.logs("load.txt"), strict=True):
        assert record.status == "failed"
        assert "quantities.latency_ms: nothing matches read = 'p99 = " in record.reason
        assert "tps = " in record.reason
        assert "latency average = " in said


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("image = ", 'command = ["x"]\nimage = '), "the image has no program /usr/local/bin/nothing", 2),
        (("oci:shop.tar", "oci:none.tar"), "there is no such image", 2),
    ],
)
def test_what_can_be_known_beforehand_leaves_nothing(
    tmp_path: Path, words: tuple[str, str], said: str, code: int
) -> None:
    made = till()
    made.config["Entrypoint"] = ["/usr/local/bin/nothing"]
    save(tmp_path, made)
    ran = run(tmp_path, SHOP.replace(*words), HTTP, NATIVE)
    assert (ran.code, said in ran.said) == (code, True), ran.said
    assert not ran.path.exists()
    assert not list((tmp_path / "state").rglob("*.jsonl"))
