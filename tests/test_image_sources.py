"""Images of the user's: how they are named, found among others, and what their configuration means."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import ocimake
from ocimake import Made, docker_files, layer, layout_files, write_archive, write_directory
from virtoll.errors import HostError
from virtoll.images import archive, bounds, inside, oci
from virtoll.images import tree as fit
from virtoll.images.config import DEFAULT_PATH, ImageConfig, parse, process
from virtoll.images.source import Source
from virtoll.offers import Port

ONE = Made([layer(ocimake.Entry("a", b"1"))], {"Cmd": ["/a"]})
TWO = Made([layer(ocimake.Entry("a", b"2"))], {"Cmd": ["/a"]})
FOREIGN = Made([], {"Cmd": ["/a"]}, architecture="arm64")

Writer = Callable[[Path, Mapping[str, Made]], Path]
WRITERS: dict[str, Writer] = {
    "layout": lambda at, images: write_directory(at / "layout", layout_files(images)),
    "archive": lambda at, images: write_archive(at / "shop.tar", layout_files(images)),
    "archive-gz": lambda at, images: write_archive(at / "shop.tgz", layout_files(images), compressed=True),
    "save-legacy": lambda at, images: write_archive(at / "save.tar", docker_files(images, legacy=True)),
    "save": lambda at, images: write_archive(at / "save.tar", docker_files(images, legacy=False)),
    "save-gz": lambda at, images: write_archive(at / "save.tgz", docker_files(images, legacy=False), compressed=True),
}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest) -> Writer:
    return WRITERS[request.param]


def found(path: Path, tag: str = "") -> archive.Found:
    return archive.find(Source("oci", path, tag), "amd64")


def refused(path: Path, tag: str = "") -> str:
    with pytest.raises(HostError) as raised:
        found(path, tag)
    assert raised.value.problem.where == f"oci:{path}{f':{tag}' if tag else ''}"
    assert raised.value.problem.remedy
    return str(raised.value)


# --- names -------------------------------------------------------------------------------------------------------


def test_a_source_is_relative_to_its_study_file() -> None:
    assert Source.parse("oci:shop.tar", Path("/studies")) == Source("oci", Path("/studies/shop.tar"))
    assert Source.parse("oci:/a/shop.tar:me/shop:1.2", Path("/s")) == Source("oci", Path("/a/shop.tar"), "me/shop:1.2")
    assert Source.parse("dir:a:b", Path("/s")) == Source("dir", Path("/s/a:b"))
    assert str(Source("oci", Path("/s/x"), "1")) == "oci:/s/x:1"


@pytest.mark.parametrize("text", ["shop.tar", "docker:shop", "oci:", "dir:", "", "oci::tag", "oci:a\0b"])
def test_what_is_no_source_is_told_what_would_be_one(text: str) -> None:
    with pytest.raises(ValueError, match="oci:PATH"):
        Source.parse(text, Path("/"))


# --- one of several ----------------------------------------------------------------------------------------------


def test_the_only_image_needs_no_tag_and_is_the_same_in_every_format(write: Writer, tmp_path: Path) -> None:
    image = found(write(tmp_path, {"shop:1.2": ONE}))
    assert image.id == ONE.id
    assert image.config["config"] == {"Cmd": ["/a"]}


def test_a_tag_names_one_of_several(write: Writer, tmp_path: Path) -> None:
    path = write(tmp_path, {"shop:1.2": ONE, "docker.io/library/shop:1.3": TWO})
    assert found(path, "shop:1.2").id == ONE.id
    assert found(path, "1.3").id == TWO.id
    said = refused(path, "1.4")
    assert "no image 1.4" in said
    assert "1.2" in said
    assert "1.3" in said


def test_several_and_none_named_are_listed(write: Writer, tmp_path: Path) -> None:
    said = refused(write(tmp_path, {"shop:1": ONE, "shop:2": TWO}))
    assert "2 images" in said
    assert "shop:1, shop:2" in said


def test_the_registry_that_tools_put_before_a_name_need_not_be_written(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "x", layout_files({"localhost/shop:1": ONE, "docker.io/library/shop:2": TWO}))
    assert found(path, "shop:1").id == ONE.id
    assert found(path, "shop:2").id == TWO.id


def test_two_names_of_one_image_are_one_image(write: Writer, tmp_path: Path) -> None:
    assert found(write(tmp_path, {"shop:1": ONE, "shop:latest": ONE})).id == ONE.id


def test_several_without_a_name_cannot_be_told_apart(tmp_path: Path) -> None:
    files = layout_files({"": ONE})
    files["index.json"] = layout_files({"": ONE, "x": TWO})["index.json"].replace(b'"org.opencontainers', b'"other')
    assert "they have no names" in refused(write_directory(tmp_path / "x", files))


# --- machines ----------------------------------------------------------------------------------------------------


def test_another_machines_image_is_refused(write: Writer, tmp_path: Path) -> None:
    said = refused(write(tmp_path, {"shop:1": FOREIGN}))
    assert "is for linux/arm64, and this machine is linux/amd64" in said
    assert "--platform linux/amd64" in said


def test_of_an_image_for_several_machines_ours_is_taken(tmp_path: Path) -> None:
    assert found(write_archive(tmp_path / "x.tar", layout_files({"1": [FOREIGN, ONE]}))).id == ONE.id


def test_an_image_for_several_other_machines_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar", layout_files({"1": [FOREIGN, Made(architecture="s390x")]}))
    assert "is for linux/arm64 and linux/s390x, and" in refused(path)


# --- damage ------------------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    assert "no such image" in refused(tmp_path / "none.tar")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b nonsense", bytes(10240)])
def test_a_file_that_is_no_archive(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(data)
    said = refused(tmp_path / "x.tar")
    assert "damaged or cut off" in said or "is no image" in said


def test_an_archive_packed_by_zstd_is_told_as_such(tmp_path: Path) -> None:
    """It was told as damaged, and to be copied again."""
    (tmp_path / "x.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    said = refused(tmp_path / "x.tar.zst")
    assert "packed by zstd" in said
    assert "zstd -d x.tar.zst" in said


def test_an_unpacked_docker_archive_is_told_as_such(tmp_path: Path) -> None:
    """It was told to hold no manifest.json, which it holds."""
    said = refused(write_directory(tmp_path / "saved", docker_files({"shop:1": ONE}, legacy=True)))
    assert "docker save writes, unpacked" in said
    assert f"tar -C {tmp_path}/saved -cf saved.tar ." in said


@pytest.mark.parametrize("manifest", [b'{"schemaVersion": 2, "layers": []}', b'{"name": "a web site"}'])
def test_a_directory_with_another_manifest_is_no_unpacked_docker_archive(manifest: bytes, tmp_path: Path) -> None:
    """What skopeo copies to dir:, and a web site, were told to come of docker save, and to be packed again: the archive
    was then told to be damaged.
    """
    (tmp_path / "manifest.json").write_bytes(manifest)
    said = refused(tmp_path)
    assert "docker save writes, unpacked" not in said
    assert 'write "dir:PATH"' in said


def test_a_directory_of_files_is_told_from_a_layout(tmp_path: Path) -> None:
    assert 'write "dir:PATH"' in refused(tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
def test_an_archive_that_was_cut_off(compressed: bool, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar", layout_files({"1": ONE}), compressed=compressed)
    whole = path.read_bytes()
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        try:
            found(path)
        except HostError as error:
            assert error.problem.remedy  # noqa: PT017
        else:
            assert not any(whole[length:]) or compressed, "only the zeros that end an archive may be missing"


def test_a_document_that_is_not_what_its_digest_says(tmp_path: Path) -> None:
    files = layout_files({"1": ONE})
    name = f"blobs/sha256/{ONE.id.removeprefix('sha256:')}"
    files[name] = files[name].replace(b"/a", b"/b")
    assert "is not what its digest says" in refused(write_directory(tmp_path / "x", files))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("index.json", b"{", "is no JSON"),
        ("index.json", b"[]", "index.json is missing, or no object"),
        ("index.json", b"{}", "a list of objects is missing"),
        ("index.json", b'{"manifests": [1]}', "a list of objects is missing"),
        ("index.json", b'{"manifests": []}', "holds no image"),
        ("index.json", b'{"manifests": [{}]}', "no sha256 digest"),
        ("index.json", b'{"manifests": [{"digest": "sha256:../../../../etc/passwd"}]}', "no sha256 digest"),
        ("index.json", b'{"manifests": [{"digest": "sha256:%064d"}]}' % 1, "a part is missing"),
        ("manifest.json", b'[{"Config": 1}]', "names no configuration"),
        ("manifest.json", b'[{"Config": "../../x"}]', "a part is missing"),
        ("manifest.json", b"{}", "a list of objects is missing"),
        ("manifest.json", b'[{"Config": "a", "config": "b"}]', "manifest.json says one thing twice"),
        ("index.json", b'{"manifests": [{"digest": "a", "Digest": "b"}]}', "index.json says one thing twice"),
        ("index.json", b'{"manifests": [], "manifests": []}', "index.json says one thing twice"),
    ],
)
def test_documents_that_mean_nothing(name: str, text: bytes, said: str, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar", {**layout_files({"1": ONE}), name: text})
    assert said in refused(path)


@pytest.mark.parametrize("other", ["Layers", "LAYERS", "layer\u017f", "Config"])
def test_a_manifest_that_the_unpackers_read_otherwise_is_refused(other: str, tmp_path: Path) -> None:
    """Go's reader takes a name in any case, and the last one: what was measured, and what the id is of, was not what
    umoci unpacked. More than 32 GB could be, or a file that removes what lies outside; or what another image's id then
    stood for in the cache.
    """
    files = layout_files({"1": ONE})
    digest = json.loads(files["index.json"])["manifests"][0]["digest"]
    manifest = json.loads(files[f"blobs/sha256/{digest.removeprefix('sha256:')}"])
    manifest[other] = manifest["config" if other == "Config" else "layers"]
    descriptor = ocimake._blob(files, ocimake._json(manifest), ocimake._MANIFEST)
    files["index.json"] = ocimake._json({"schemaVersion": 2, "manifests": [descriptor]})
    assert "the manifest says one thing twice" in refused(write_directory(tmp_path / "x", files))


def test_labels_that_differ_in_case_are_no_matter(write: Writer, tmp_path: Path) -> None:
    labelled = Made([], {"Labels": {"maintainer": "a", "Maintainer": "b"}})
    assert found(write(tmp_path, {"1": labelled})).id == labelled.id


def test_an_index_that_holds_itself_ends(tmp_path: Path) -> None:
    """It cannot, but for broken digests; indexes in indexes can go on for as long as somebody makes them."""
    files = layout_files({"1": [ONE]})
    for _ in range(5):
        inner = files["index.json"]
        descriptor = ocimake._blob(files, inner, "application/vnd.oci.image.index.v1+json")
        files["index.json"] = ocimake._json({"schemaVersion": 2, "manifests": [descriptor]})
    assert "indexes in indexes" in refused(write_directory(tmp_path / "x", files))


def test_a_document_may_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("virtoll.images.documents.MOST_METADATA_BYTES", 1000)
    files = layout_files({"1": ONE})
    files["index.json"] += b" " * 1000
    assert "is larger than 1000 B" in refused(write_directory(tmp_path / "x", files))
    assert "is no image" in refused(write_archive(tmp_path / "x.tar", files))


def test_a_header_may_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_HEADER_BYTES", 1000)
    path = write_archive(tmp_path / "x.tar", {"a" * 2000: b"", **layout_files({"1": ONE})})
    assert "a header of" in refused(path)


def test_a_link_to_a_directory_is_the_directory(tmp_path: Path) -> None:
    """`image = "dir:current"`, a link, had the digest of an empty directory, and "was changed while it was read"."""
    (tmp_path / "shop-1").mkdir()
    (tmp_path / "shop-1/shop").write_bytes(b"1")
    (tmp_path / "current").symlink_to("shop-1")
    linked = fit.digest(tmp_path / "current", "dir:current")
    assert linked == fit.digest(tmp_path / "shop-1", "dir:shop-1")
    (tmp_path / "shop-1/shop").write_bytes(b"2")
    assert linked != fit.digest(tmp_path / "current", "dir:current")


def test_a_directory_of_which_a_file_goes_while_it_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a traceback of FileNotFoundError."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")
    content = fit._content

    def then_gone(path: Path) -> str:
        (tmp_path / "b").unlink(missing_ok=True)
        return content(path)

    monkeypatch.setattr(fit, "_content", then_gone)
    with pytest.raises(HostError, match="changed while it was read"):
        oci.image_of("shop", Source("dir", tmp_path))


def test_a_pipe_in_a_layout_is_not_waited_for(tmp_path: Path) -> None:
    import os

    path = write_directory(tmp_path / "x", layout_files({"1": ONE}))
    (path / "index.json").unlink()
    os.mkfifo(path / "index.json")
    assert "is no image" in refused(path)


# --- configuration -----------------------------------------------------------------------------------------------


def test_a_configuration_says_all_that_docker_honours() -> None:
    document = {
        "config": {
            "Entrypoint": ["/bin/shop"],
            "Cmd": ["--quiet"],
            "Env": ["B=2", "A=1=1", "EMPTY=", "nothing"],
            "WorkingDir": "srv//shop/",
            "User": "shop:stock",
            "Volumes": {"/data": {}},
            "ExposedPorts": {"8080": {}, "53/udp": {}, "9000-9010/tcp": {}, "1/sctp": {}},
            "StopSignal": "SIGINT",
            "Labels": {"a": "b"},
        }
    }
    config = parse(document, "here")
    assert config == ImageConfig(
        entrypoint=("/bin/shop",),
        command=("--quiet",),
        env=(("B", "2"), ("A", "1=1"), ("EMPTY", "")),
        working_dir="/srv/shop",
        user="shop:stock",
        volumes=("/data",),
        ports=(Port(53, "udp"), Port(8080), Port(9000, "tcp", 9010)),
        stop_signal="SIGINT",
    )
    assert ImageConfig.stored(config.plain()) == config


@pytest.mark.parametrize("document", [{}, {"config": None}, {"config": {"Entrypoint": None, "Env": None}}])
def test_an_image_may_say_nothing(document: dict[str, object]) -> None:
    assert parse(document, "here") == ImageConfig()


@pytest.mark.parametrize(
    "config",
    [
        {"Entrypoint": "sh"},
        {"Cmd": [1]},
        {"Env": {"A": "1"}},
        {"Env": ["A=\0"]},
        {"User": 5},
        {"Volumes": ["/data"]},
        {"ExposedPorts": {"http": {}}},
        {"ExposedPorts": {"70000/tcp": {}}},
        {"WorkingDir": "/a\0b"},
        ["Cmd"],
    ],
)
def test_a_wrong_configuration_is_refused(config: object) -> None:
    with pytest.raises(HostError, match="configuration is wrong"):
        parse({"config": config}, "here")


@pytest.mark.parametrize(
    ("entrypoint", "command", "study", "argv"),
    [
        (("e", "1"), ("c",), None, ("e", "1", "c")),
        (("e", "1"), ("c",), ["x", "y"], ("e", "1", "x", "y")),
        (("e",), ("c",), [], ("e",)),
        ((), ("c", "2"), None, ("c", "2")),
        ((), ("c",), ["x"], ("x",)),
        (("/bin/sh", "-c", "exec shop"), (), ["x"], ("/bin/sh", "-c", "exec shop", "x")),
    ],
)
def test_the_command_line_is_dockers(
    entrypoint: tuple[str, ...], command: tuple[str, ...], study: list[str] | None, argv: tuple[str, ...]
) -> None:
    assert ImageConfig(entrypoint, command).argv(study) == argv


PASSWD = """# accounts
root:x:0:0:r:/root:/bin/sh
shop:x:1500:1500::/srv/shop:/bin/false
77:x:99:98::/n:
broken
bare:x:5:6
homed:x:8:9::/h
"""
GROUP = "root:x:0:\nshop:x:1500:\nstock:x:1600:other,shop\nmore:x:1700:shop\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write_directory(tmp_path / "t/etc", {"passwd": PASSWD.encode(), "group": GROUP.encode()})
    return tmp_path / "t"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("", (0, 0, (), "/root")),
        ("root", (0, 0, (), "/root")),
        ("shop", (1500, 1500, (1600, 1700), "/srv/shop")),
        ("1500", (1500, 1500, (1600, 1700), "/srv/shop")),
        ("shop:stock", (1500, 1600, (), "/srv/shop")),
        ("shop:7", (1500, 7, (), "/srv/shop")),
        ("bare", (5, 6, (), "/")),  # lines that end early, as of images written by hand: Docker takes them
        ("homed", (8, 9, (), "/h")),
        ("4000", (4000, 0, (), "/")),
        ("4000:4001", (4000, 4001, (), "/")),
        ("77", (77, 0, (), "/")),  # a number is never a name
        ("shop:1500", (1500, 1500, (), "/srv/shop")),
        (":stock", (0, 1600, (), "/root")),
    ],
)
def test_the_user_is_the_images(user: str, expected: tuple[object, ...], tree: Path) -> None:
    started = process(ImageConfig(("/a",), user=user), tree)
    assert (started.uid, started.gid, started.groups, dict(started.env)["HOME"]) == expected


def test_an_image_from_scratch_knows_no_accounts(tmp_path: Path) -> None:
    assert process(ImageConfig(("/a",), user="1000"), tmp_path).uid == 1000
    with pytest.raises(HostError, match="user 'shop', whom its /etc/passwd does not know"):
        process(ImageConfig(("/a",), user="shop"), tmp_path)


@pytest.mark.parametrize("user", ["nobody-here", "shop:nothing", "99999999999", "4294967295", "-1", "shop:x"])
def test_an_account_that_is_not_there_is_an_error(user: str, tree: Path) -> None:
    with pytest.raises(HostError):
        process(ImageConfig(("/a",), user=user), tree)


def test_the_environment_is_dockers(tree: Path) -> None:
    config = ImageConfig(("/a",), env=(("Z", "1"), ("A", "2")), user="shop")
    assert process(config, tree).env == (
        ("PATH", DEFAULT_PATH),
        ("HOSTNAME", "instance"),
        ("Z", "1"),
        ("A", "2"),
        ("HOME", "/srv/shop"),
    )
    started = process(ImageConfig(("/a",), env=(("PATH", "/x"), ("HOME", "/h"))), tree, env=[("PATH", "/y"), ("N", "")])
    assert dict(started.env) == {"PATH": "/y", "HOSTNAME": "instance", "HOME": "/h", "N": ""}


def test_nothing_to_start_is_an_error_only_when_it_is_started(tree: Path) -> None:
    assert ImageConfig().argv() == ()
    with pytest.raises(HostError, match="no entrypoint and no command") as raised:
        process(ImageConfig(), tree)
    assert "command = " in raised.value.problem.remedy
    assert process(ImageConfig(), tree, command=["/b"]).argv == ("/b",)


# --- paths inside ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "target", "asked", "leads_to"),
    [
        ("etc", "/host", "/etc/x", "host/x"),
        ("etc", "../../../host", "/etc/x", "host/x"),
        ("a", "b/../..", "/a/c", "c"),
        ("a", "/", "/a/a/x", "x"),
        ("a", "b", "/../../a/./x", "b/x"),
    ],
)
def test_no_link_leads_out(link: str, target: str, asked: str, leads_to: str, tmp_path: Path) -> None:
    (tmp_path / link).symlink_to(target)
    assert inside.resolved(tmp_path, asked) == tmp_path / leads_to


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(HostError, match="circle"):
        inside.resolved(tmp_path, "/a")


def test_accounts_are_read_through_links_that_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").symlink_to("/etc/passwd")  # a circle inside; the host's from outside
    with pytest.raises(HostError, match="circle"):
        process(ImageConfig(("/a",), user="root"), tmp_path)
