"""Images of the user's, unpacked: what layers mean, what a stranger's may not do, and what is said when it fails.

Everything is made here (`ocimake`); nothing is fetched. Needs root, skopeo and umoci.
"""

from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import ocimake
from ocimake import Entry, Made, directory, docker_files, layer, layout_files, write_archive, write_directory
from virtoll.errors import HostError
from virtoll.hosts.local import LocalHost
from virtoll.images import bounds, oci, rootfs, tree, unpack
from virtoll.images.base import Image
from virtoll.images.config import ImageConfig
from virtoll.images.forms import tar_stream
from virtoll.images.source import Source

pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(
        not all(shutil.which(program) for program in unpack.PACKAGES), reason="apt-get install skopeo umoci"
    ),
]
_OURS = {"dev", "etc", "proc", "run", "sys", "tmp", "virtoll"}
_AND = {"var", "var/tmp"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIRTOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def build(path: Path, kind: str = "oci", tag: str = "") -> Image:
    return oci.build(LocalHost(), "shop", Source("oci" if kind == "oci" else "dir", path, tag), _told.append)


_told: list[str] = []


def of(tmp_path: Path, *layers: bytes, **config: object) -> Image:
    """The image of these layers, by way of an archive."""
    return build(write_archive(tmp_path / "image.tar", layout_files({"1": Made(list(layers), config)})))


def refused(tmp_path: Path, *layers: bytes) -> str:
    with pytest.raises(HostError) as raised:
        of(tmp_path, *layers)
    assert raised.value.problem.where
    assert raised.value.problem.remedy
    assert nothing_kept(tmp_path)
    return str(raised.value)


def nothing_kept(tmp_path: Path) -> bool:
    return all(path.suffix == ".lock" for path in (tmp_path / "cache/images").iterdir())


def held(image: Image) -> list[str]:
    """What of the image is its maker's."""
    return [path for path in ocimake.paths(image.rootfs) if path.split("/")[0] not in _OURS and path not in _AND]


# --- what layers mean --------------------------------------------------------------------------------------------


def test_later_layers_change_and_remove_what_earlier_ones_hold(tmp_path: Path) -> None:
    image = of(
        tmp_path,
        layer(directory("a"), Entry("a/kept", b"1"), Entry("a/gone", b"1"), Entry("a/changed", b"1")),
        layer(directory("b"), Entry("b/x", b"1"), directory("b/y"), Entry("b/y/z", b"1"), directory("c"), Entry("c/x")),
        layer(Entry("a/.wh.gone"), Entry("a/changed", b"2"), Entry(".wh.c"), Entry("b/.wh..wh..opq"), Entry("b/new")),
    )
    assert held(image) == ["a", "a/changed", "a/kept", "b", "b/new"]
    assert (image.rootfs / "a/changed").read_bytes() == b"2"


def test_owners_modes_links_and_attributes_are_the_layers(tmp_path: Path) -> None:
    image = of(
        tmp_path,
        layer(
            directory("d", 0o2770, 5, 6),
            Entry("d/suid", b"x", mode=0o4755, uid=7, gid=8),
            Entry("d/twin", kind="link", target="d/suid"),
            Entry("d/soft", kind="symlink", target="/etc/passwd"),
            Entry("d/pipe", kind="fifo", mode=0o600),
            Entry("d/able", b"x", attributes={"user.note": "mine"}),
        ),
        layer(Entry("d/more", b"y", mode=0)),
    )
    d = image.rootfs / "d"
    assert (stat.S_IMODE(d.stat().st_mode), d.stat().st_uid, d.stat().st_gid) == (0o2770, 5, 6)
    suid = (d / "suid").stat()
    assert (stat.S_IMODE(suid.st_mode), suid.st_uid, suid.st_gid) == (0o4755, 7, 8)
    assert (d / "twin").stat().st_ino == suid.st_ino
    assert (d / "soft").readlink() == Path("/etc/passwd")
    assert (d / "pipe").is_fifo()
    assert stat.S_IMODE((d / "more").stat().st_mode) == 0
    assert os.getxattr(d / "able", "user.note") == b"mine"


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_layers_may_be_compressed_as_they_like(compression: ocimake.Compression, tmp_path: Path) -> None:
    files = layout_files({"1": Made([layer(Entry("a", b"1" * 100_000))])}, compression)
    assert (build(write_directory(tmp_path / "x", files)).rootfs / "a").stat().st_size == 100_000


def test_an_image_is_the_same_from_every_format(tmp_path: Path) -> None:
    made = Made([layer(Entry("a", b"1")), layer(Entry("b", b"2"))], {"Cmd": ["/a"], "User": "7"})
    sources = [
        write_directory(tmp_path / "layout", layout_files({"": made})),
        write_archive(tmp_path / "with:colon.tgz", layout_files({"x": made}, ""), compressed=True),
        write_archive(tmp_path / "legacy.tar", docker_files({"shop:1": made}, legacy=True)),
        write_archive(tmp_path / "save.tar", docker_files({"shop:1": made}, legacy=False)),
        write_archive(tmp_path / "save.tgz", docker_files({"shop:1": made}, legacy=False), compressed=True),
    ]
    digests, contents = set(), set()
    for source in sources:
        image = build(source)
        digests.add(image.digest)
        contents.add(tree.digest(image.rootfs, ""))
        assert oci.config_of(image) == ImageConfig(command=("/a",), user="7")
        shutil.rmtree(tmp_path / "cache")
    assert len(digests) == len(contents) == 1


def test_the_tag_that_is_named_is_the_one_that_is_unpacked(tmp_path: Path) -> None:
    one, two = Made([layer(Entry("one"))]), Made([layer(Entry("two"))])
    for files in (layout_files({"1": one, "2": two}), docker_files({"s:1": one, "s:2": two}, legacy=True)):
        path = write_archive(tmp_path / "x.tar", files)
        assert held(build(path, tag="2")) == ["two"]
        assert held(build(path, tag="1")) == ["one"]


def test_an_image_without_layers_is_one(tmp_path: Path) -> None:
    assert held(of(tmp_path)) == []


# --- the cache ---------------------------------------------------------------------------------------------------


def test_it_is_unpacked_once_verified_and_roots_alone(tmp_path: Path, cache: Path) -> None:
    _told.clear()
    image = of(tmp_path, layer(Entry("a", b"1")), Cmd=["/a"])
    assert sum("unpacking" in line for line in _told) == 1
    assert of(tmp_path, layer(Entry("a", b"1")), Cmd=["/a"]) == image
    assert sum("unpacking" in line for line in _told) == 1
    assert stat.S_IMODE((cache / "images").stat().st_mode) == 0o700
    assert rootfs.manifest(image)["packages"] == []
    (image.rootfs / "a").write_bytes(b"2")
    with pytest.raises(HostError, match="not as it was built"):
        of(tmp_path, layer(Entry("a", b"1")), Cmd=["/a"])


def test_a_new_agent_unpacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = of(tmp_path, layer(Entry("a", b"1")))
    monkeypatch.setattr("virtoll.binaries.digest", lambda name: "b" * 64)
    _told.clear()
    second = of(tmp_path, layer(Entry("a", b"1")))
    assert first.digest != second.digest
    assert not any("unpacking" in line for line in _told)
    assert (first.rootfs / "a").stat().st_ino == (second.rootfs / "a").stat().st_ino


def test_another_configuration_is_another_image(tmp_path: Path) -> None:
    assert of(tmp_path, layer(Entry("a")), Cmd=["/a"]).digest != of(tmp_path, layer(Entry("a")), Cmd=["/b"]).digest


def test_the_source_is_not_written_to(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "x", layout_files({"1": Made([layer(Entry("a"))])}))
    before = tree.digest(path, "")
    build(path)
    assert tree.digest(path, "") == before


def test_nothing_of_the_machines_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """skopeo noted in /var/lib/containers/cache which blobs it had met, in no ledger, and nobody removed it."""
    tools = 'for top in /var/lib /root /run; do mount -t tmpfs none $top; done; "$@"; find /var/lib /root -mindepth 1'
    apart = ("unshare", "--mount", "--net", "--", "sh", "-ec", f'{{ {tools}; }} >>"$0"', str(tmp_path / "written"))
    monkeypatch.setattr(unpack, "_ALONE", apart)
    assert held(of(tmp_path, layer(Entry("a")))) == ["a"]
    assert (tmp_path / "written").read_text() == ""


# --- fit for every platform --------------------------------------------------------------------------------------


def test_what_every_platform_needs_is_made_once(tmp_path: Path) -> None:
    root = of(tmp_path, layer(directory(".", 0o700, 9, 9), Entry("etc/hosts", b"10.0.0.1 secret\n"))).rootfs
    modes = {"": 0o755, "proc": 0o555, "sys": 0o555, "dev": 0o755, "dev/shm": 0o1777, "run": 0o755, "tmp": 0o1777}
    modes["var/tmp"] = 0o1777
    assert {name: stat.S_IMODE((root / name).stat().st_mode) for name in modes} == modes
    assert (root.stat().st_uid, root.stat().st_gid) == (0, 0)
    assert (root / "etc/hosts").read_text() == "127.0.0.1 localhost instance\n"
    assert (root / "etc/resolv.conf").read_text() == ""
    assert stat.S_ISCHR((root / "dev/null").stat().st_mode)
    assert os.access(root / "virtoll/agent", os.X_OK)


def test_a_directory_that_is_there_keeps_its_mode_and_owner(tmp_path: Path) -> None:
    root = of(tmp_path, layer(directory("tmp", 0o700, 5), directory("data", 0o750, 7, 8)), Volumes={"/data": {}}).rootfs
    assert (stat.S_IMODE((root / "tmp").stat().st_mode), (root / "tmp").stat().st_uid) == (0o700, 5)
    assert (stat.S_IMODE((root / "data").stat().st_mode), (root / "data").stat().st_uid) == (0o750, 7)


def test_working_directory_and_volumes_are_made_inside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    root = of(
        tmp_path,
        layer(Entry("var", kind="symlink", target=str(victim)), Entry("up", kind="symlink", target="../../../..")),
        WorkingDir="/srv/shop",
        Volumes={"/var/data": {}, "/up/here": {}},
    ).rootfs
    assert list(victim.iterdir()) == []
    assert (root / str(victim).lstrip("/") / "data").is_dir()
    assert (root / "here").is_dir()
    assert stat.S_IMODE((root / "srv/shop").stat().st_mode) == 0o755


def test_a_working_directory_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar", layout_files({"1": Made([layer(Entry("a"))], {"WorkingDir": "/a/b"})}))
    with pytest.raises(HostError, match="/a/b cannot be used: it is no directory"):
        build(path)


def test_links_in_place_of_our_directories_lead_nowhere(tmp_path: Path) -> None:
    victim = write_directory(tmp_path / "victim", {"hosts": b"mine", "keep": b"mine"})
    names = ("etc", "dev", "proc", "sys", "run")
    root = of(tmp_path, layer(*(Entry(name, kind="symlink", target=str(victim)) for name in names))).rootfs
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == {"hosts": b"mine", "keep": b"mine"}
    for name in ("dev", "proc", "sys"):
        assert not (root / name).is_symlink()
    assert (root / str(victim).lstrip("/") / "hosts").read_text() == "127.0.0.1 localhost instance\n"


def test_our_own_directory_is_not_the_images(tmp_path: Path) -> None:
    assert "holds /virtoll" in refused(tmp_path, layer(directory("virtoll"), Entry("virtoll/agent", b"evil")))
    assert "holds /virtoll" in refused(tmp_path, layer(Entry("virtoll", kind="symlink", target="/etc")))


def test_devices_outside_of_dev_are_refused_and_those_inside_replaced(tmp_path: Path) -> None:
    disk = Entry("dev/sda", kind="block", device=(8, 0), mode=0o666)
    assert "a device, /srv/disk" in refused(tmp_path, layer(replace(disk, path="srv/disk")))
    hole = Entry("srv/hole", kind="char", device=(0, 0))  # what an overlay takes for a removed file
    assert "a device, /srv/hole" in refused(tmp_path, layer(hole))
    root = of(tmp_path, layer(directory("dev"), disk, Entry("dev/null", b"a file"))).rootfs
    assert not (root / "dev/sda").exists()
    assert stat.S_ISCHR((root / "dev/null").stat().st_mode)
    harmless = Entry("chroot/dev/random", kind="char", device=(1, 8))
    assert held(of(tmp_path, layer(harmless))) == ["chroot", "chroot/dev", "chroot/dev/random"]


def test_attributes_that_steer_an_overlay_are_left_out(tmp_path: Path) -> None:
    steer = {"trusted.overlay.redirect": "/etc", "user.overlay.redirect": "/etc", "user.mine": "1"}
    image = of(tmp_path, layer(Entry("x", b"1", attributes=steer)))
    assert os.listxattr(image.rootfs / "x") == ["user.mine"]
    files = write_directory(tmp_path / "files", {"x": b"1"})
    for name, value in steer.items():
        os.setxattr(files / "x", name, value.encode())
    image = build(files, "dir")
    assert os.listxattr(image.rootfs / "x") == ["user.mine"]
    assert any("trusted.overlay.redirect of /x" in line for line in rootfs.manifest(image)["left_out"])


def test_the_label_of_selinux_is_nobodys_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file has one where it is in force, and root may not remove it."""
    files = write_directory(tmp_path / "files", {"x": b"1"})
    without = tree.digest(files, "here")
    os.setxattr(files / "x", "user.mine", b"1")
    own = tree.digest(files, "here")
    os.setxattr(files / "x", "security.selinux", b"system_u:object_r:default_t:s0\0")
    assert tree.digest(files, "here") == own != without

    def refuse(_path: Path, name: str, *, follow_symlinks: bool) -> None:
        raise PermissionError(13, "Permission denied", f"{name} {follow_symlinks}")

    monkeypatch.setattr(os, "removexattr", refuse)
    image = build(files, "dir")
    assert rootfs.manifest(image)["left_out"] == []
    with tar_stream(LocalHost(), image) as stream:
        packed = stream.read()
    assert b"SCHILY.xattr.user.mine" in packed
    assert b"selinux" not in packed


# --- a stranger's ------------------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    return write_directory(tmp_path / "victim", {"file": b"mine"})


def untouched(victim: Path) -> bool:
    state = (victim / "file").stat()
    return [path.name for path in victim.iterdir()] == ["file"] and (state.st_nlink, state.st_size) == (1, 4)


def test_no_entry_is_written_outside(tmp_path: Path, victim: Path) -> None:
    """Whether umoci refuses an entry or puts it inside, nothing outside changes."""
    climb = "../" * 40
    target = str(victim).lstrip("/")
    attacks = {
        "dots": [Entry(f"{climb}{target}/evil", b"x")],
        "absolute": [Entry(f"/{target}/evil", b"x")],
        "link to it": [Entry("l", kind="symlink", target=str(victim)), Entry("l/evil", b"x")],
        "link up": [Entry("l", kind="symlink", target=f"{climb}{target}"), Entry("l/evil", b"x")],
        "link to the file": [Entry("l", kind="symlink", target=f"/{target}/file"), Entry("l", b"overwritten")],
        "the root as a link": [Entry(".", kind="symlink", target=str(victim)), Entry("evil", b"x")],
        "hard link out": [Entry("l", kind="link", target=f"{climb}{target}/file"), Entry("l", b"overwritten")],
        "hard link, absolute": [Entry("l", kind="link", target=f"/{target}/file")],
        "hard link through a link": [
            Entry("d", kind="symlink", target=str(victim)),
            Entry("l", kind="link", target="d/file"),
        ],
        "whiteout out": [Entry("d", kind="symlink", target=str(victim)), Entry("d/.wh.file")],
        "whiteout of dots": [Entry(f"{climb}{target}/.wh.file")],
        "whiteout named dots": [Entry("d/.wh...")],
        "opaque out": [Entry("d", kind="symlink", target=str(victim)), Entry("d/.wh..wh..opq")],
        "directory over a link": [Entry("d", kind="symlink", target=str(victim)), directory("d", 0o777, 99)],
    }
    outcomes = {}
    for name, entries in attacks.items():
        for layers in ([layer(*entries)], [layer(entry) for entry in entries]):
            mode = victim.stat().st_mode
            try:
                image = of(tmp_path, *layers)
                outcomes[name] = "inside"
                assert not any(
                    Path(path).samefile(victim / "file") for path in image.rootfs.rglob("*") if path.exists()
                )
            except HostError as error:
                outcomes[name] = str(error)
                assert nothing_kept(tmp_path) or "inside" in outcomes.values()
            assert untouched(victim), name
            assert victim.stat().st_mode == mode, name
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert outcomes["dots"] == "inside"


@pytest.mark.parametrize("name", ["d/.wh...", ".wh...", "d/.wh..", "./.wh./", "x/../.wh..."])
def test_a_whiteout_of_the_directory_above_is_refused(name: str, tmp_path: Path) -> None:
    """umoci 0.4.7 would remove what the root filesystem lies in."""
    assert "removes what is no file of it" in refused(tmp_path, layer(directory("d"), Entry("d/x")), layer(Entry(name)))


def test_there_is_a_bound_on_bytes_files_and_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "/".join(["d"] * 120)
    assert "more than 100 directories" in refused(tmp_path, layer(Entry(deep)))
    monkeypatch.setattr(bounds, "MOST_BYTES", 1_000_000)
    assert "unpacks to more than" in refused(
        tmp_path, layer(Entry("a", bytes(600_000))), layer(Entry("b", bytes(600_000)))
    )
    monkeypatch.setattr(bounds, "MOST_FILES", 30)
    many = layer(*(Entry(f"x{number}") for number in range(40)))
    assert "more than 30 files" in refused(tmp_path, many)


def test_a_hole_counts_with_all_its_bytes(tmp_path: Path) -> None:
    """A sparse file of a terabyte is 2 kB of tar."""
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 2**40)
    command = ["tar", "--create", "--sparse", "--format=pax", f"--directory={tmp_path}", "big"]
    sparse = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    assert len(sparse) < 20_000
    assert "unpacks to more than 34 GB" in refused(tmp_path, sparse)


def test_more_than_the_disk_has_room_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=50_000))
    said = refused(tmp_path, layer(Entry("a", bytes(60_000))))
    assert "the image needs 0.0 GB, and 0.0 GB are free" in said
    assert "VIRTOLL_CACHE" in said


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """umoci, on a file system that is smaller than it claims."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 0, 2**50))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(small)], check=True)
    try:
        monkeypatch.setenv("VIRTOLL_CACHE", str(small / "cache"))
        path = write_archive(tmp_path / "x.tar", layout_files({"1": Made([layer(Entry("a", bytes(8_000_000)))])}))
        with pytest.raises(HostError, match=r"disk is full|No space left") as raised:
            build(path)
        assert "VIRTOLL_CACHE" in raised.value.problem.remedy
    finally:
        subprocess.run(["umount", str(small)], check=True)


# --- damage ------------------------------------------------------------------------------------------------------


def test_a_layer_that_is_not_what_its_digest_says(tmp_path: Path) -> None:
    made = Made([layer(Entry("a", b"1"))])
    files = layout_files({"1": made}, "")
    name = f"blobs/sha256/{ocimake.digest(made.layers[0]).removeprefix('sha256:')}"
    files[name] = files[name].replace(b"1" + bytes(511), b"2" + bytes(511))
    with pytest.raises(HostError, match="a layer is not what the image says it is"):
        build(write_directory(tmp_path / "x", files))


def test_a_saved_layer_that_is_not_the_configurations(tmp_path: Path) -> None:
    made = Made([layer(Entry("a", b"1"))])
    files = docker_files({"s:1": made}, legacy=True)
    name = next(name for name in files if name.endswith("layer.tar"))
    files[name] = layer(Entry("a", b"2"))
    with pytest.raises(HostError, match="a layer is not what the image says it is"):
        build(write_archive(tmp_path / "x.tar", files))


@pytest.mark.parametrize("formats", ["layout", "archive", "save"])
def test_a_layer_that_is_missing(formats: str, tmp_path: Path) -> None:
    made = Made([layer(Entry("a", b"1"))])
    files = docker_files({"s:1": made}, legacy=True) if formats == "save" else layout_files({"1": made}, "")
    name = ocimake.digest(made.layers[0]).removeprefix("sha256:")
    del files[f"{name}/layer.tar" if formats == "save" else f"blobs/sha256/{name}"]
    write = write_directory if formats == "layout" else write_archive
    with pytest.raises(HostError) as raised:
        build(write(tmp_path / "x", files))
    assert "missing" in raised.value.problem.what or "damaged" in raised.value.problem.what
    assert nothing_kept(tmp_path)


@pytest.mark.parametrize("data", [b"no tar", b"\x1f\x8bno gzip", layer(Entry("a", b"1" * 3000))[:2000]])
def test_a_layer_that_is_no_archive(data: bytes, tmp_path: Path) -> None:
    said = refused(tmp_path, data)
    assert "damaged" in said
    assert "sha256:" in said


def test_a_tool_that_is_missing_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    path = write_archive(tmp_path / "x.tar", layout_files({"1": Made()}))
    assert oci.check(LocalHost(), Source("oci", path)) == []
    monkeypatch.setenv("PATH", "/nowhere")
    problems = oci.check(LocalHost(), Source("oci", path))
    assert [problem.remedy for problem in problems] == ["apt-get install skopeo", "apt-get install umoci"]
    assert oci.check(LocalHost(), Source("dir", tmp_path / "files")) == [], "a directory needs neither"


# --- directories -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = write_directory(tmp_path / "files", {"bin/shop": b"#!", "etc/hosts": b"10.0.0.1 secret"})
    os.chown(root / "bin/shop", 5, 6)
    (root / "bin/shop").chmod(0o4750)
    os.link(root / "bin/shop", root / "bin/twin")
    (root / "dev").mkdir()
    os.mknod(root / "dev/sda", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    return root


def test_a_directory_is_an_image_of_its_own(files: Path) -> None:
    image = build(files, "dir")
    assert held(image) == ["bin", "bin/shop", "bin/twin"]
    state = (image.rootfs / "bin/shop").stat()
    assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (0o4750, 5, 6)
    assert (image.rootfs / "bin/twin").stat().st_ino == state.st_ino != (files / "bin/shop").stat().st_ino
    assert (image.rootfs / "etc/hosts").read_text() == "127.0.0.1 localhost instance\n"
    assert (files / "etc/hosts").read_bytes() == b"10.0.0.1 secret"
    assert oci.config_of(image) == ImageConfig()
    assert build(files, "dir") == image


def test_every_change_of_a_directory_is_another_image(files: Path) -> None:
    digests = [build(files, "dir").digest]
    (files / "bin/shop").write_bytes(b"!#")
    digests.append(build(files, "dir").digest)
    (files / "bin/shop").chmod(0o755)
    digests.append(build(files, "dir").digest)
    (files / "bin/new").symlink_to("shop")
    digests.append(build(files, "dir").digest)
    assert len(set(digests)) == 4
    (files / "dev/new").touch()  # none of it is used
    os.utime(files / "bin/shop", (1, 1))
    assert build(files, "dir").digest == digests[-1]


def test_a_directory_that_changes_meanwhile_is_no_image(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = tree.digest

    def then_changed(root: Path, where: str) -> str:
        found = digest(root, where)
        (files / "bin/shop").write_bytes(b"changed")
        return found

    monkeypatch.setattr(tree, "digest", then_changed)
    with pytest.raises(HostError, match="changed while it was read"):
        build(files, "dir")


def test_a_socket_is_left_out(files: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(files / "bin/socket"))
        image = build(files, "dir")
    assert held(image) == ["bin", "bin/shop", "bin/twin"]
    assert "the socket /bin/socket" in rootfs.manifest(image)["left_out"][0]


def test_what_is_mounted_in_a_directory_is_not_in_the_image(files: Path) -> None:
    (files / "mnt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(files / "mnt")], check=True)
    try:
        (files / "mnt/secret").write_bytes(b"1")
        assert held(build(files, "dir")) == ["bin", "bin/shop", "bin/twin", "mnt"]
    finally:
        subprocess.run(["umount", str(files / "mnt")], check=True)


def test_a_subvolume_in_a_directory_is_refused_and_not_left_out(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As btrfs has them: of another device, and mounted nowhere. Its files were missing without a word."""
    (files / "var").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(files / "var")], check=True)
    try:
        monkeypatch.setattr("virtoll.images.tree.MOUNTINFO", "/dev/null")
        with pytest.raises(HostError, match="a subvolume of its own") as caught:
            build(files, "dir")
    finally:
        subprocess.run(["umount", str(files / "var")], check=True)
    assert caught.value.problem.where == str(files / "var")


def test_directories_that_cannot_be_one(tmp_path: Path, cache: Path) -> None:
    for path, what in [
        (tmp_path / "none", "no such image"),
        (Path("/"), "own cache"),
        (Path(__file__), "no directory"),
    ]:
        with pytest.raises(HostError, match=what):
            build(path, "dir")


# --- the example -------------------------------------------------------------------------------------------------


def test_the_example_image_of_the_repository(tmp_path: Path) -> None:
    if not ocimake.SHOP_SERVER.exists():
        pytest.skip("run setup/native: it builds build/shop")
    image = build(
        write_archive(tmp_path / "shop.tar", docker_files({"shop:1": ocimake.shop()}, legacy=False)), tag="shop:1"
    )
    config = oci.config_of(image)
    assert config.argv() == ("/usr/local/bin/shop", "/etc/shop.toml")
    assert dict(config.env) == {"SHOP_PORT": "8080", "SHOP_NAME": "the corner shop"}
    assert (config.user, config.working_dir, config.stop_signal) == ("shop", "/srv/shop", "SIGINT")
    assert [str(port) for port in config.ports] == ["8080/tcp"]
    stock = (image.rootfs / "srv/shop/data/stock.txt").stat()
    assert (stat.S_IMODE(stock.st_mode), stock.st_uid) == (0o600, 1500)
    with tarfile.open(fileobj=io.BytesIO(ocimake.shop().layers[1])) as archive:
        assert archive.getmember("usr/local/bin/shop").mode == 0o755
