"""The cache and the state are root's alone, and an image is what it was when it was built."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from acl import let_write
from test_rootfs import _MAKES, stand_in
from virtoll import binaries
from virtoll.errors import HostError
from virtoll.hosts import private
from virtoll.hosts.ledger import Ledger, cache_directory, opened, state_directory
from virtoll.hosts.local import LocalHost
from virtoll.hosts.lock import exclusive
from virtoll.images import contents, oci, rootfs
from virtoll.images.cached import cached
from virtoll.images.source import Source

__all__ = ["stand_in"]  # a fixture

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
SOMEBODY = 12345


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_what_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private.make(tmp_path / "a/b/cache", "images", "deep")
    finally:
        os.umask(before)
    assert made == tmp_path / "a/b/cache/images/deep"
    assert {mode_of(path) for path in (made, *list(made.parents)[:4])} == {0o700}


def test_a_looser_directory_is_tightened_with_what_is_in_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "images").mkdir(parents=True)
    (cache / "images").chmod(0o755)
    cache.chmod(0o755)
    (cache / "images/entry").mkdir()
    private.make(cache, "images")
    assert (mode_of(cache), mode_of(cache / "images")) == (0o700, 0o700)
    assert (cache / "images/entry").is_dir()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that everybody can look into, as /srv is; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_directory_that_others_use_is_not_taken_from_them(reachable: Path) -> None:
    srv = reachable / "srv"
    (srv / "www").mkdir(parents=True)
    srv.chmod(0o755)
    with pytest.raises(HostError, match=rf"it is not empty(.|\n)*chmod 700 {srv}(.|\n)*VIRTOLL_CACHE"):
        private.make(srv)
    with pytest.raises(HostError, match="it is not empty"):
        private.make(srv, "images")
    assert mode_of(srv) == 0o755
    assert not (srv / "images").exists()
    private.make(srv / "virtoll", "images")  # what the remedy says
    assert (mode_of(srv), mode_of(srv / "virtoll")) == (0o755, 0o700)
    srv.chmod(0o700)
    assert private.make(srv, "images").is_dir()


def test_an_empty_directory_right_below_the_root_is_left_as_it_is(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/srv is others' soon, who could not pass any more."""
    monkeypatch.setattr(private, "_TOP", reachable)
    srv = reachable / "srv"
    srv.mkdir()
    with pytest.raises(HostError, match=rf"others may use it \(mode 0755\)(.|\n)*chmod 700 {srv}(.|\n)*VIRTOLL_CACHE"):
        private.make(srv)
    private.make(srv / "virtoll")
    assert (mode_of(srv), mode_of(srv / "virtoll")) == (0o755, 0o700)


@pytest.mark.parametrize("name", ["STATE", "CACHE"])
def test_what_an_earlier_virtoll_made_is_tightened(reachable: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    ours = reachable / "virtoll"
    (ours / "images/entry").mkdir(parents=True)
    (ours / "images").chmod(0o755)
    ours.chmod(0o755)
    monkeypatch.setattr(private, name, ours)
    private.make(ours, "images")
    assert (mode_of(ours), mode_of(ours / "images")) == (0o700, 0o700)


def test_an_empty_directory_is_taken(reachable: Path) -> None:
    (reachable / "new").mkdir()
    (reachable / "new").chmod(0o755)
    private.make(reachable / "new")
    assert mode_of(reachable / "new") == 0o700


def test_what_others_could_write_to_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o777)
    private.make(tmp_path / "a")
    assert mode_of(tmp_path / "a") == 0o700
    (tmp_path / "a/planted").mkdir()
    (tmp_path / "a").chmod(0o1777)
    with pytest.raises(HostError, match=r"others could write to it until now \(mode 1777\)(.|\n)*rm -r"):
        private.make(tmp_path / "a")
    assert mode_of(tmp_path / "a") == 0o1777, "nothing is changed that is refused"


@needs_root
def test_a_directory_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", SOMEBODY, 0)
    for ask in (private.make, private.trusted):
        with pytest.raises(HostError, match=f"belongs to user {SOMEBODY}"):
            ask(tmp_path / "a")
        with pytest.raises(HostError, match=f"belongs to user {SOMEBODY}"):
            ask(tmp_path / "a/below")
    assert not (tmp_path / "a/below").exists()


def test_below_a_directory_that_others_may_write_to_nothing_is_made(tmp_path: Path) -> None:
    tmp_path.joinpath("open").mkdir()
    tmp_path.joinpath("open").chmod(0o777)
    for ask in (private.make, private.trusted):
        with pytest.raises(HostError, match="others may write to it"):
            ask(tmp_path / "open/cache")
    assert not (tmp_path / "open/cache").exists()


@needs_root
def test_who_may_write_by_an_acl_is_somebody_else_though_the_group_is_roots(tmp_path: Path) -> None:
    """The group's bits are what the ACL lets anybody have whom it names."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o775)
    assert private.trusted(shared) == shared, "root's own group"
    let_write(shared, SOMEBODY)
    assert (mode_of(shared), shared.stat().st_gid) == (0o775, 0)
    for ask in (private.make, private.trusted, private.without_links):
        with pytest.raises(HostError, match=rf"others may write to it \(mode 0775, by its ACL\)(.|\n)*{shared}"):
            ask(shared / "cache")
    (shared / "planted").mkdir()
    with pytest.raises(HostError, match=r"others could write to it until now \(mode 0775, by its ACL\)"):
        private.make(shared)
    (shared / "planted").rmdir()
    assert mode_of(private.make(shared)) == 0o700, "nobody whom it names has anything left"


def test_below_a_sticky_directory_nobody_can_replace_ours(tmp_path: Path) -> None:
    tmp_path.joinpath("sticky").mkdir()
    tmp_path.joinpath("sticky").chmod(0o1777)
    assert private.trusted(tmp_path / "sticky/cache") == tmp_path / "sticky/cache"
    assert private.make(tmp_path / "sticky/cache").is_dir()
    with pytest.raises(HostError, match="others may write to it"):
        private.trusted(tmp_path / "sticky")


def test_a_link_of_ours_is_followed_and_what_it_leads_to_is_tightened(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o755)
    (tmp_path / "cache").symlink_to("../" + f"{tmp_path.name}/disk")
    private.make(tmp_path / "cache")
    assert mode_of(tmp_path / "disk") == 0o700


@needs_root
def test_state_and_cache_are_where_the_kernel_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has moved them to a larger disk has left a link; what is mounted there is known by its own path."""
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "var").symlink_to("disk")
    for name, directory in (("VIRTOLL_STATE", state_directory), ("VIRTOLL_CACHE", cache_directory)):
        monkeypatch.setenv(name, str(tmp_path / "var/virtoll"))
        assert directory() == tmp_path / "disk/virtoll"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv(name, "disk")
        assert directory() == tmp_path / "disk"


def test_a_variable_that_says_nothing_names_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file sets what is not set outside: the directory that virtoll was started in held the state then,
    was root's alone from then on where it was empty, and two that were started in two did not exclude each other.
    """
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name, usual, directory in (
        ("VIRTOLL_STATE", "STATE", state_directory),
        ("VIRTOLL_CACHE", "CACHE", cache_directory),
    ):
        monkeypatch.setattr(private, usual, tmp_path / usual)
        monkeypatch.setenv(name, "")
        assert directory() == tmp_path / usual


@needs_root
@pytest.mark.parametrize("below", ["", "virtoll", "virtoll/deeper"])
def test_what_is_not_mounted_is_not_filled_in_on_the_disk_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str
) -> None:
    (tmp_path / "big").mkdir(mode=0o700)  # where the larger disk would be mounted
    (tmp_path / "link").symlink_to("big/virtoll")
    for name, directory in (("VIRTOLL_STATE", state_directory), ("VIRTOLL_CACHE", cache_directory)):
        monkeypatch.setenv(name, str(tmp_path / "link" / below))
        with pytest.raises(HostError, match="it is a link that leads nowhere") as refused:
            private.make(directory())
        assert refused.value.problem.where == str(tmp_path / "link")
    assert not list((tmp_path / "big").iterdir())


@pytest.mark.machine
def test_what_is_mounted_below_a_link_is_unmounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to("disk")
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "state"))
    host, place = LocalHost(), state_directory() / "layer"
    try:
        with opened(host, state_directory() / "ledger", "run") as ledger, ledger.owning("mount", str(place)):
            place.mkdir()
            host.run(["mount", "-t", "tmpfs", "virtoll-test", str(place)])
        assert not place.is_mount()
    finally:
        if place.is_mount():
            host.run(["umount", str(place)])


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_that_somebody_else_could_turn_is_refused(tmp_path: Path, depth: int) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "theirs").symlink_to("disk")
    os.chown(tmp_path / "theirs", SOMEBODY, SOMEBODY, follow_symlinks=False)
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    name = tmp_path / ("theirs" if depth == 1 else "ours")
    for ask in (private.make, private.trusted):
        with pytest.raises(HostError, match=f"belongs to user {SOMEBODY}"):
            ask(name)


@pytest.mark.parametrize("target", ["cache", "nowhere"])
def test_a_link_to_itself_or_to_nothing_is_told(tmp_path: Path, target: str) -> None:
    (tmp_path / "cache").symlink_to(target)
    with pytest.raises(HostError, match=r"symbolic links|leads nowhere"):
        private.make(tmp_path / "cache")


def test_a_file_in_the_place_of_the_cache_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(HostError, match="no directory"):
        private.make(tmp_path / "cache")
    with pytest.raises(HostError, match="Not a directory"):
        private.make(tmp_path / "cache/images")


def test_where_the_environment_names_an_open_place_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "open/cache"))
    monkeypatch.setenv("VIRTOLL_STATE", str(tmp_path / "open/state"))
    for directory in (cache_directory, state_directory):
        with pytest.raises(HostError, match="VIRTOLL_CACHE and VIRTOLL_STATE name"):
            directory()


def test_locks_ledgers_and_entries_are_made_in_private(tmp_path: Path) -> None:
    with exclusive(tmp_path / "state"):
        pass
    Ledger(LocalHost(), tmp_path / "ledger/run.jsonl").open().close()
    cached(tmp_path / "kernels/entry", Path.mkdir)
    assert {mode_of(tmp_path / name) for name in ("state", "ledger", "kernels")} == {0o700}


# -- an image's contents ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda root: (root / "etc/planted").write_text("x"), "./etc/planted"),
        (lambda root: (root / "etc/hosts").unlink(), "./etc/hosts"),
        (lambda root: (root / "etc/hosts").write_text("127.0.0.1 evil instance\n"), "./etc/hosts"),
        (lambda root: (root / "virtoll/agent").chmod(0o4755), "./virtoll/agent"),
        (lambda root: os.truncate(root / "virtoll/agent", 0), "./virtoll/agent"),
        (lambda root: (root.parent / "contents").unlink(), "list of its contents is missing"),
        (lambda root: (root.parent / "contents").write_bytes(b"\xff"), "list of its contents is missing or damaged"),
    ],
)
def test_an_image_that_was_written_to_is_not_used(
    stand_in: Callable[[str], Path], spoil: Callable[[Path], None], told: str
) -> None:
    stand_in(_MAKES)
    image = rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert rootfs.build(LocalHost(), "proxy", ["squid"], print) == image
    spoil(image.rootfs)
    with pytest.raises(HostError) as refused:
        rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert told in refused.value.problem.what
    assert f"rm -r {image.directory}" in refused.value.problem.remedy


def test_packages_that_were_written_to_make_no_new_image(
    stand_in: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with another agent, nor, where they are the essential ones, with others upon them."""
    cache = stand_in(_MAKES)
    rootfs.build(LocalHost(), "proxy", [], print)
    (essential,) = (cache / "images").glob("bootstrap-*")
    rootfs.build(LocalHost(), "proxy", ["squid"], print)
    (entry,) = set((cache / "images").glob("bootstrap-*")) - {essential}
    (entry / "rootfs/tmp").mkdir()
    (essential / "rootfs/home").mkdir()
    monkeypatch.setattr(binaries, "digest", lambda name: "b" * 64)
    for packages, name in ((["squid"], "tmp"), (["nginx"], "home")):
        with pytest.raises(HostError, match=rf"not as it was built: (.|\n)*\./{name}"):
            rootfs.build(LocalHost(), "proxy", packages, print)


@pytest.mark.parametrize("level", ["unpacked", "finished"])
def test_an_image_that_lies_where_another_would_is_not_taken_for_it(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is called by twelve digits of its digest: somebody who gives images away can try (2^48) until one of his
    would lie where another does, and was then measured in its place.
    """
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(binaries, "digest", lambda name: "a" * 64)
    (tmp_path / "shop").mkdir()
    source = Source("dir", tmp_path / "shop")
    wanted = oci.image_of("shop", source)
    unpacked = f"unpacked-{oci._base_digest(oci._identified(source)[0])[:12]}"
    entry = wanted.directory if level == "finished" else wanted.directory.with_name(unpacked)
    (entry / "rootfs").mkdir(parents=True)
    rootfs.write_manifest(entry, {"id": "another", "digest": wanted.digest[:12] + "0" * 52})
    contents.note(entry, "rootfs")
    with pytest.raises(HostError, match="another image lies where this one would") as refused:
        oci.build(LocalHost(), "shop", source, print)
    assert f"rm -r {entry}" in refused.value.problem.remedy


def test_any_name_is_a_line_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in (b"a b", b"line\nbreak", b"\xff\xfe", "é".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path / "tree") + b"/" + name)).write_bytes(b"")
    (tmp_path / "tree/link").symlink_to("some\nwhere")
    contents.note(tmp_path, "tree")
    assert len((tmp_path / "contents").read_text().splitlines()) == 1 + 5
    contents.verify(tmp_path, "tree")


def test_images_are_kept_where_only_root_gets(stand_in: Callable[[str], Path]) -> None:
    cache = stand_in(_MAKES)
    cache.chmod(0o755)
    rootfs.build(LocalHost(), "proxy", ["squid"], print)
    assert (mode_of(cache), mode_of(cache / "images")) == (0o700, 0o700)
