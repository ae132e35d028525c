"""Images made on the spot, and a real registry on loopback (Debian's `docker-registry`)."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import platform
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import zstandard

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), "amd64")
USERNAME, PASSWORD = "alice", "open sesame"
_HTPASSWD = f"{USERNAME}:$2y$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW\n"
_PROGRAMS = (
    "bash",
    "sh",
    "cat",
    "env",
    "getent",
    "id",
    "ls",
    "mkdir",
    "setpriv",
    "setsid",
    "stat",
    "true",
)
_OCI = "application/vnd.oci.image"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass(frozen=True)
class Entry:
    """One entry of a layer."""

    content: bytes | str = b""
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    pax: dict[str, str] = field(default_factory=dict)


def folder(mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> Entry:
    return Entry(mode=mode, owner=owner, kind=tarfile.DIRTYPE)


def symlink(target: str) -> Entry:
    return Entry(kind=tarfile.SYMTYPE, link=target, mode=0o777)


def hard_link(target: str) -> Entry:
    return Entry(kind=tarfile.LNKTYPE, link=target)


def make_tar(entries: Mapping[str, Entry | str] | Sequence[tuple[str, Entry | str]]) -> bytes:
    """Return a layer; a text is the content of a plain file."""
    buffer = io.BytesIO()
    pairs = entries.items() if isinstance(entries, Mapping) else entries
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, given in pairs:
            entry = Entry(given) if isinstance(given, str) else given
            content = entry.content.encode() if isinstance(entry.content, str) else entry.content
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = entry.kind, entry.link, entry.mode
            info.uid, info.gid = entry.owner
            info.pax_headers = dict(entry.pax)
            info.size = len(content) if entry.kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@cache
def make_system() -> bytes:
    """Return a layer with a shell and a few programs: this machine's own, with their libraries."""
    files: dict[str, Entry | str] = {
        "etc": folder(),
        "usr": folder(),
        "bin": symlink("usr/bin"),
        "lib": symlink("usr/lib"),
        "lib64": symlink("usr/lib64"),
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\ntaken:x:1000:1000::/srv:/bin/sh\n",
        "etc/group": "root:x:0:\ntaken:x:1000:\n",
        "etc/profile": "PATH=/usr/bin:/bin\nexport PATH\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "tmp": folder(0o1777),
    }
    for program in _PROGRAMS:
        path = Path(shutil.which(program) or f"/bin/{program}").resolve()
        files[f"usr/bin/{program}"] = Entry(path.read_bytes(), 0o755)
        for word in subprocess.check_output(["ldd", path], text=True).split():
            if word.startswith("/"):
                place = f"usr{word.removeprefix('/usr')}"
                files[place] = Entry(Path(word).read_bytes(), 0o755)
    return make_tar(files)


@dataclass(frozen=True)
class Image:
    """The blobs of an image, and its manifest."""

    manifest: bytes
    blobs: dict[str, bytes]
    layers: tuple[str, ...]
    """The digests of the layers as they are stored."""

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    @property
    def descriptor(self) -> dict[str, Any]:
        media = f"{_OCI}.manifest.v1+json"
        return {"mediaType": media, "digest": self.digest, "size": len(self.manifest)}


def make_image(
    *layers: bytes, packing: str = "gzip", architecture: str = ARCHITECTURE, **config: Any
) -> Image:
    """Return an image of these layers; `config` is as in a Dockerfile (`Env`, `User`, …)."""
    packed = [_pack(layer, packing) for layer in layers]
    document = {
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
    }
    about = json.dumps(document).encode()
    media = f"{_OCI}.layer.v1.tar" + {"gzip": "+gzip", "zstd": "+zstd", "": ""}[packing]
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _describe(about, f"{_OCI}.config.v1+json"),
        "layers": [_describe(layer, media) for layer in packed],
    }
    blobs = {digest_of(blob): blob for blob in (about, *packed)}
    return Image(json.dumps(manifest).encode(), blobs, tuple(map(digest_of, packed)))


def make_index(images: Mapping[str, Image]) -> bytes:
    """Return an index of images by their architecture."""
    entries = [
        {**image.descriptor, "platform": {"os": "linux", "architecture": name}}
        for name, image in images.items()
    ]
    media = f"{_OCI}.index.v1+json"
    return json.dumps({"schemaVersion": 2, "mediaType": media, "manifests": entries}).encode()


def write_layout(image: Image, target: Path, tag: str = "latest") -> None:
    """Write an image as an OCI layout."""
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)
    for digest, content in {**image.blobs, image.digest: image.manifest}.items():
        (blobs / digest.removeprefix("sha256:")).write_bytes(content)
    names = {"org.opencontainers.image.ref.name": tag}
    entry = {**image.descriptor, "annotations": names}
    (target / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


def _pack(layer: bytes, packing: str) -> bytes:
    if packing == "gzip":
        return gzip.compress(layer, 1, mtime=0)
    return zstandard.compress(layer, 1) if packing == "zstd" else layer


def _describe(content: bytes, media: str) -> dict[str, Any]:
    return {"mediaType": media, "digest": digest_of(content), "size": len(content)}


class RunningRegistry:
    """A registry process, its log, and the means to put images into it."""

    def __init__(self, folder: Path, port: int, auth: str | None) -> None:
        self.host = f"127.0.0.1:{port}"
        self._folder = folder
        self._auth = auth

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text()

    def count_reads(self, digest: str) -> int:
        """Return how often a blob was asked for."""
        return sum('"GET /v2/' in line and digest in line for line in self.log.splitlines())

    def push(self, name: str, image: Image, tag: str = "latest") -> str:
        """Store an image; return the name to pull it by."""
        with self._client() as client:
            for digest, content in image.blobs.items():
                started = client.post(f"/v2/{name}/blobs/uploads/")
                assert started.status_code == 202, started.text
                place = httpx.URL(started.headers["Location"]).copy_merge_params({"digest": digest})
                assert client.put(place, content=content).status_code == 201
            self._put(client, name, tag, image.manifest, f"{_OCI}.manifest.v1+json")
        return f"{self.host}/{name}:{tag}"

    def push_index(self, name: str, images: Mapping[str, Image]) -> str:
        for architecture, image in images.items():
            self.push(name, image, architecture)
        with self._client() as client:
            self._put(client, name, "latest", make_index(images), f"{_OCI}.index.v1+json")
        return f"{self.host}/{name}"

    def tamper(self, digest: str) -> None:
        """Change a stored blob without changing its name or its size."""
        sha = digest.removeprefix("sha256:")
        path = self._folder / f"data/docker/registry/v2/blobs/sha256/{sha[:2]}/{sha}/data"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def _put(self, client: httpx.Client, name: str, tag: str, content: bytes, kind: str) -> None:
        headers = {"Content-Type": kind}
        stored = client.put(f"/v2/{name}/manifests/{tag}", content=content, headers=headers)
        assert stored.status_code == 201, stored.text

    def _client(self) -> httpx.Client:
        auth = (USERNAME, PASSWORD) if self._auth == "password" else None
        return httpx.Client(base_url=f"http://{self.host}", auth=auth, timeout=30)


@contextlib.contextmanager
def run_registry(folder: Path, auth: str | None = None) -> Iterator[RunningRegistry]:
    """Run a registry; `auth` may be `password`, or the settings of a token server."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _find_port()
    lines = [
        "version: 0.1",
        f"storage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}",
        f"http: {{addr: '127.0.0.1:{port}', secret: x}}",
    ]
    if auth == "password":
        (folder / "htpasswd").write_text(_HTPASSWD)
        lines.append(f"auth: {{htpasswd: {{realm: test, path: {folder / 'htpasswd'}}}}}")
    elif auth is not None:
        lines.append(f"auth: {auth}")
    (folder / "config.yml").write_text("\n".join(lines))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )
    try:
        _await_port(port, process)
        yield RunningRegistry(folder, port, auth)
    finally:
        process.kill()
        process.wait()


def _find_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None, "the registry ended"
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)
