"""Images for tests, made without a builder, a daemon or a network: from a Dockerfile of the simple kind, or by hand.

An image is a list of layers (tar archives) and a configuration; it is written as an OCI layout, as an archive of one,
or as ``docker save`` writes it, before Docker 25 and since.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shlex
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from virtoll.hosts.local import LocalHost
from virtoll.images import busybox

CHECKOUT = Path(__file__).parent.parent
SHOP = CHECKOUT / "tests/images/shop"  # the example in the repository: a server with a user and a directory of its own
SHOP_SERVER = CHECKOUT / "build/shop"  # its program, built by setup/native from rust/example

Compression = Literal["", "gzip", "zstd"]


def static_busybox() -> bytes:
    """One that needs no libraries, for images that have none; fetched where this machine's does."""
    busybox.fetch(LocalHost(), lambda _line: None)
    program = busybox.static()
    assert program is not None
    return program.read_bytes()


_KINDS = {
    "file": tarfile.REGTYPE,
    "dir": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "link": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "char": tarfile.CHRTYPE,
    "block": tarfile.BLKTYPE,
}


@dataclass(frozen=True)
class Entry:
    """One member of a layer. ``".wh.NAME"`` removes NAME, ``".wh..wh..opq"`` all that the directory held before."""

    path: str
    data: bytes = b""
    kind: str = "file"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    target: str = ""
    device: tuple[int, int] = (0, 0)
    attributes: Mapping[str, str] = field(default_factory=dict)


def directory(path: str, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Entry:
    return Entry(path, kind="dir", mode=mode, uid=uid, gid=gid)


def layer(*entries: Entry) -> bytes:
    """A layer: an uncompressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            member = tarfile.TarInfo(entry.path)
            member.type = _KINDS[entry.kind]
            member.size = len(entry.data)
            member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
            member.linkname = entry.target
            member.devmajor, member.devminor = entry.device
            member.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in entry.attributes.items()}
            archive.addfile(member, io.BytesIO(entry.data) if entry.data else None)
    return buffer.getvalue()


@dataclass
class Made:
    """An image. ``config`` is what Docker shows as .Config."""

    layers: list[bytes] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    architecture: str = "amd64"

    def document(self) -> bytes:
        """The configuration, which the image's id is the digest of."""
        return _json(
            {
                "architecture": self.architecture,
                "os": "linux",
                "config": self.config,
                "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in self.layers]},
            }
        )

    @property
    def id(self) -> str:
        return digest(self.document())


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# --- from a Dockerfile -------------------------------------------------------------------------------------------


def built(dockerfile: Path, files: Mapping[str, Path] | None = None) -> Made:
    """The image of a Dockerfile that needs no command run: FROM scratch, COPY, and what configures.

    COPY takes files beside the Dockerfile, or those of ``files``, which are built elsewhere; --chown takes numbers.
    """
    made = Made()
    text = dockerfile.read_text().replace("\\\n", " ")
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word and not word.startswith("#"):
            _STEPS[word](made, rest.strip(), lambda name: (files or {}).get(name, dockerfile.parent / name))
    return made


_Find = Callable[[str], Path]


def _copy(made: Made, rest: str, find: _Find) -> None:
    words = shlex.split(rest)
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    uid, _, gid = options.get("chown", "0:0").partition(":")
    entries = []
    for source in sources:
        path = target + source if target.endswith("/") else target
        mode = int(options.get("chmod", "644"), 8)
        entries.append(Entry(path.lstrip("/"), find(source).read_bytes(), mode=mode, uid=int(uid), gid=int(gid or uid)))
    made.layers.append(layer(*entries))


def _workdir(made: Made, rest: str, find: _Find) -> None:
    made.config["WorkingDir"] = rest
    made.layers.append(layer(directory(rest.lstrip("/"))))


def _env(made: Made, rest: str, find: _Find) -> None:
    made.config.setdefault("Env", []).extend(shlex.split(rest))


def _command(key: str) -> Callable[[Made, str, _Find], None]:
    def step(made: Made, rest: str, find: _Find) -> None:
        made.config[key] = json.loads(rest) if rest.startswith("[") else ["/bin/sh", "-c", rest]

    return step


def _word(key: str) -> Callable[[Made, str, _Find], None]:
    return lambda made, rest, find: made.config.update({key: rest})


def _set(key: str) -> Callable[[Made, str, _Find], None]:
    def step(made: Made, rest: str, find: _Find) -> None:
        words = json.loads(rest) if rest.startswith("[") else rest.split()
        made.config.setdefault(key, {}).update({word: {} for word in words})

    return step


def _from(made: Made, rest: str, find: _Find) -> None:
    assert rest == "scratch", "nothing is fetched: FROM scratch"


_STEPS: dict[str, Callable[[Made, str, _Find], None]] = {
    "FROM": _from,
    "COPY": _copy,
    "ENV": _env,
    "USER": _word("User"),
    "WORKDIR": _workdir,
    "ENTRYPOINT": _command("Entrypoint"),
    "CMD": _command("Cmd"),
    "VOLUME": _set("Volumes"),
    "EXPOSE": _set("ExposedPorts"),
    "STOPSIGNAL": _word("StopSignal"),
    "LABEL": lambda made, rest, find: made.config.setdefault("Labels", {}).update(dict([rest.split("=", 1)])),
}


def shop() -> Made:
    """The example image of the repository."""
    return built(SHOP / "Dockerfile", {"shop": SHOP_SERVER})


# --- as files ----------------------------------------------------------------------------------------------------


def layout_files(images: Mapping[str, Made | Sequence[Made]], compression: Compression = "gzip") -> dict[str, bytes]:
    """The files of an OCI layout: images by their tags ("" is none); where there are several, for several machines."""
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"})}
    manifests = []
    for tag, made in images.items():
        if isinstance(made, Made):
            descriptor = _manifest(made, files, compression)
        else:
            each = [
                {**_manifest(one, files, compression), "platform": {"os": "linux", "architecture": one.architecture}}
                for one in made
            ]
            index = {"schemaVersion": 2, "manifests": [*each, _attestation(files)]}
            descriptor = _blob(files, _json(index), "application/vnd.oci.image.index.v1+json")
        manifests.append({**descriptor, "annotations": {"org.opencontainers.image.ref.name": tag} if tag else {}})
    files["index.json"] = _json({"schemaVersion": 2, "manifests": manifests})
    return files


def docker_files(images: Mapping[str, Made], *, legacy: bool) -> dict[str, bytes]:
    """The files of ``docker save``: layers in directories of their own, or (since Docker 25) the blobs of a layout."""
    files = {} if legacy else layout_files({tag.rpartition(":")[2]: made for tag, made in images.items()}, "")
    entries = []
    for tag, made in images.items():
        paths = []
        for one in made.layers:
            name = digest(one).removeprefix("sha256:")
            paths.append(f"{name}/layer.tar" if legacy else f"blobs/sha256/{name}")
            files[paths[-1]] = one
        config = made.id.removeprefix("sha256:")
        path = f"{config}.json" if legacy else f"blobs/sha256/{config}"
        files[path] = made.document()
        entries.append({"Config": path, "RepoTags": [tag] if tag else None, "Layers": paths})
    files["manifest.json"] = _json(entries)
    return files


def write_directory(target: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)
    return target


def write_archive(target: Path, files: Mapping[str, bytes], *, compressed: bool = False) -> Path:
    data = layer(*(Entry(name, content) for name, content in files.items()))
    target.write_bytes(gzip.compress(data, 1) if compressed else data)
    return target


def _manifest(made: Made, files: dict[str, bytes], compression: Compression) -> dict[str, Any]:
    kind = "application/vnd.oci.image.layer.v1.tar" + (f"+{compression}" if compression else "")
    layers = [_blob(files, _compressed(one, compression), kind) for one in made.layers]
    config = _blob(files, made.document(), "application/vnd.oci.image.config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": layers}
    return _blob(files, _json(manifest), _MANIFEST)


_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _attestation(files: dict[str, bytes]) -> dict[str, Any]:
    """What buildx puts beside an image."""
    notes = {"vnd.docker.reference.type": "attestation-manifest"}
    unknown = {"os": "unknown", "architecture": "unknown"}
    return {**_blob(files, _json({"layers": []}), _MANIFEST), "annotations": notes, "platform": unknown}


def _blob(files: dict[str, bytes], data: bytes, media_type: str) -> dict[str, Any]:
    files[f"blobs/sha256/{digest(data).removeprefix('sha256:')}"] = data
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _compressed(data: bytes, compression: Compression) -> bytes:
    if compression == "gzip":
        return gzip.compress(data, 1, mtime=0)
    if compression == "zstd":
        return subprocess.run(["zstd", "-qc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


def paths(root: Path) -> Iterator[str]:
    """What a tree holds, sorted."""
    yield from sorted(str(path.relative_to(root)) for path in root.rglob("*"))
