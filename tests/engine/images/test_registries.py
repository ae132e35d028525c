"""Images come from real registries, are verified, and are fetched once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from sandkeeper.engine.images.credentials import AwsForm, RegistryCredentials, find_credentials
from sandkeeper.engine.images.errors import ImageError
from sandkeeper.engine.images.store import KEEP_S, ImageStore, is_kept, remove_old_blobs
from sandkeeper.engine.storage.data_dir import DataDir
from support.images import (
    PASSWORD,
    USERNAME,
    RunningRegistry,
    make_image,
    make_tar,
    run_registry,
    write_layout,
)
from support.token_server import run_token_server

GOOD = RegistryCredentials(USERNAME, PASSWORD)


async def pull(
    store: ImageStore, name: str, credentials: RegistryCredentials | None = None
) -> Path:
    """Return the unpacked root."""
    image = await store.pull(name, credentials, lambda _said: None)
    return store._data_dir.layer(image.layer_id) / "root"


@pytest.mark.parametrize("packing", ["gzip", "zstd", ""])
async def test_an_image_is_unpacked_however_it_is_packed(
    registry: RunningRegistry, store: ImageStore, packing: str
) -> None:
    image = make_image(make_tar({"one": "1"}), make_tar({"two": packing}), packing=packing)
    root = await pull(store, registry.push(f"packed-{packing or 'plain'}", image))
    assert (root / "one").read_text() == "1"
    assert (root / "two").read_text() == packing


async def test_a_layer_is_fetched_once_for_every_image_and_build(
    registry: RunningRegistry, store: ImageStore
) -> None:
    shared = make_tar({"shared": "x" * 100_000})
    first = make_image(shared, make_tar({"own": "1"}))
    second = make_image(shared, make_tar({"own": "2"}))
    names = [registry.push("shared/first", first), registry.push("shared/second", second)]
    roots = await asyncio.gather(*(pull(store, name) for name in (*names, *names)))
    assert [(root / "own").read_text() for root in roots] == ["1", "2", "1", "2"]
    for layer in {*first.layers, *second.layers}:
        assert registry.count_reads(layer) == 1


async def test_an_index_leads_to_the_image_for_this_machine(
    registry: RunningRegistry, store: ImageStore
) -> None:
    own = make_image(make_tar({"mine": "yes"}))
    other = make_image(make_tar({"mine": "no"}), architecture="s390x")
    architecture = "arm64" if os.uname().machine == "aarch64" else "amd64"
    name = registry.push_index("many", {"s390x": other, architecture: own})
    assert ((await pull(store, name)) / "mine").read_text() == "yes"
    with pytest.raises(ImageError, match="linux/s390x"):
        await pull(store, registry.push_index("foreign", {"s390x": other}))
    with pytest.raises(ImageError, match="for linux/s390x"):
        await pull(store, registry.push("foreign", other, "single"))


async def test_a_digest_names_one_image_for_good(
    registry: RunningRegistry, store: ImageStore
) -> None:
    first = make_image(make_tar({"which": "first"}))
    registry.push("pinned", first)
    registry.push("pinned", make_image(make_tar({"which": "second"})))
    root = await pull(store, f"{registry.host}/pinned@{first.digest}")
    assert (root / "which").read_text() == "first"


async def test_a_layer_that_was_tampered_with_is_refused(
    registry: RunningRegistry, store: ImageStore, data_dir: DataDir
) -> None:
    image = make_image(make_tar({"bad": "x" * 10_000}))
    name = registry.push("tampered", image)
    registry.tamper(image.layers[0])
    with pytest.raises(ImageError, match="damaged or was tampered with"):
        await pull(store, name)
    assert list(data_dir.images.iterdir()) == []
    assert list(data_dir.layers.iterdir()) == []


async def test_a_content_that_the_image_does_not_name_is_refused(
    registry: RunningRegistry, store: ImageStore
) -> None:
    image = make_image(make_tar({"a": "1"}), packing="")
    other = make_image(make_tar({"a": "2"}), packing="")
    # The right digest of the packed layer, in a manifest with another configuration.
    manifest = image.manifest.replace(image.layers[0].encode(), other.layers[0].encode())
    mixed = type(image)(manifest, {**image.blobs, **other.blobs}, other.layers)
    with pytest.raises(ImageError, match=r"not sha256:.*which the image names"):
        await pull(store, registry.push("mixed", mixed))


async def test_a_password_opens_a_private_registry(
    private_registry: RunningRegistry, store: ImageStore
) -> None:
    name = private_registry.push("secret", make_image(make_tar({"a": "1"})))
    with pytest.raises(ImageError, match="give a user name"):
        await pull(store, name)
    with pytest.raises(ImageError, match="refused 'secret:latest' to 'alice'"):
        await pull(store, name, RegistryCredentials(USERNAME, "wrong"))
    assert ((await pull(store, name, GOOD)) / "a").read_text() == "1"
    # What is here already is given only to those who may have it.
    with pytest.raises(ImageError, match="give a user name"):
        await pull(store, name)


@pytest.mark.skipif(shutil.which("docker-registry") is None, reason="needs docker-registry")
async def test_a_token_opens_a_registry_that_wants_one(tmp_path: Path, store: ImageStore) -> None:
    folder = tmp_path / "registry"
    with run_registry(folder) as plain:
        plain.push("team/app", make_image(make_tar({"a": "1"})))
    with (
        run_token_server(folder, USERNAME, PASSWORD) as settings,
        run_registry(folder, settings) as running,
    ):
        name = f"{running.host}/team/app"
        with pytest.raises(ImageError, match="no public image 'team/app:latest'"):
            await pull(store, name)
        with pytest.raises(ImageError, match="check the user name"):
            await pull(store, name, RegistryCredentials(USERNAME, "wrong"))
        assert ((await pull(store, name, GOOD)) / "a").read_text() == "1"


async def test_a_key_of_aws_is_changed_for_a_password(
    private_registry: RunningRegistry, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = private_registry.push("aws", make_image(make_tar({"a": "1"})))
    form = AwsForm(
        type="aws", awsAccessKeyId="AK", awsSecretAccessKey="secret", awsRegion="eu-west-1"
    )
    with _answering_as_aws() as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_ECR", url)
        assert ((await pull(store, name, await find_credentials(form))) / "a").read_text() == "1"
        with pytest.raises(ImageError, match="AWS refused the access key: who is that"):
            await find_credentials(form.model_copy(update={"aws_access_key_id": "BK"}))
    with pytest.raises(ImageError, match="AWS cannot be reached"):
        await find_credentials(form)


@contextlib.contextmanager
def _answering_as_aws() -> Iterator[str]:
    """Stand in for AWS, which no test can have: it knows one access key."""

    class OneKey(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            signed = self.headers["Authorization"]
            is_known = "Credential=AK/" in signed and "/eu-west-1/ecr/aws4_request" in signed
            token = base64.b64encode(f"{USERNAME}:{PASSWORD}".encode()).decode()
            good = {"authorizationData": [{"authorizationToken": token}]}
            body = json.dumps(good if is_known else {"message": "who is that"}).encode()
            self.send_response(200 if is_known else 400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), OneKey)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


async def test_what_is_not_there_is_named(registry: RunningRegistry, store: ImageStore) -> None:
    registry.push("here", make_image(make_tar({"a": "1"})))
    with pytest.raises(ImageError, match="has no image 'here:gone': check name and tag"):
        await pull(store, f"{registry.host}/here:gone")
    with pytest.raises(ImageError, match=r"cannot be reached.*network"):
        await pull(store, "127.0.0.1:1/x")
    with pytest.raises(ImageError, match=r"cannot be reached.*network"):
        await pull(store, "registry.invalid/x")


async def test_a_layer_that_breaks_off_is_continued(
    registry: RunningRegistry, store: ImageStore
) -> None:
    content = os.urandom(300_000).hex()
    name = registry.push("long", make_image(make_tar({"long": content}), packing=""))
    with _breaking_off(registry.host) as (host, asked):
        root = await pull(store, name.replace(registry.host, host))
    assert (root / "long").read_text() == content
    assert len([one for one in asked if one is not None]) >= 2


@contextlib.contextmanager
def _breaking_off(registry: str) -> Iterator[tuple[str, list[str | None]]]:
    """Give a registry that breaks each blob off after 200 kB, and the ranges it was asked for."""
    asked: list[str | None] = []

    class BreakingOff(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = {k: v for k, v in self.headers.items() if k in {"Range", "Accept"}}
            answer = httpx.get(f"http://{registry}{self.path}", headers=wanted)
            if "/blobs/" in self.path:
                asked.append(self.headers.get("Range"))
            self.send_response(answer.status_code)
            for name in ("Content-Type", "Content-Length", "Content-Range"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(answer.content[:200_000])

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), BreakingOff)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


async def test_files_of_this_machine_are_images_too(
    tmp_path: Path, store: ImageStore, data_dir: DataDir
) -> None:
    write_layout(make_image(make_tar({"from": "layout"})), data_dir.images / "layout", "v1")
    with tarfile.open(data_dir.images / "packed.tar", "w") as tar:
        tar.add(data_dir.images / "layout", ".")
    assert ((await pull(store, "oci:layout:v1")) / "from").read_text() == "layout"
    with pytest.raises(ImageError, match="no image with the tag 'v2'"):
        await pull(store, "oci:layout:v2")
    with pytest.raises(ImageError, match="cannot be read"):
        await pull(store, "oci:missing")
    write_layout(make_image(make_tar({"from": "elsewhere"})), tmp_path / "elsewhere")
    for name in (f"oci:{tmp_path}/elsewhere", "oci:../../elsewhere", "oci:.."):
        with pytest.raises(ImageError, match="must be in the engine's own folder"):
            await pull(store, name)
    image = await store.pull(
        f"oci:{tmp_path}/elsewhere", None, lambda _said: None, may_read_anywhere=True
    )
    assert (data_dir.layer(image.layer_id) / "root/from").read_text() == "elsewhere"


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo")
async def test_what_docker_saves_is_an_image(
    registry: RunningRegistry, store: ImageStore, data_dir: DataDir
) -> None:
    name = registry.push("saved", make_image(make_tar({"a": "1"}), make_tar({"b": "2"})))
    _copy(f"docker://{name}", f"docker-archive:{data_dir.images}/saved.tar:saved:v1")
    root = await pull(store, "docker-archive:saved.tar")
    assert ((root / "a").read_text(), (root / "b").read_text()) == ("1", "2")
    assert await pull(store, "docker-archive:saved.tar:v1") == root
    with pytest.raises(ImageError, match="holds 0 images"):
        await pull(store, "docker-archive:saved.tar:v2")
    _copy(f"docker://{name}", f"oci-archive:{data_dir.images}/oci.tar:v1")
    root = await pull(store, "oci-archive:oci.tar:v1")
    assert (root / "b").read_text() == "2"


def _copy(source: str, target: str) -> None:
    words = ["skopeo", "copy", "-q", "--insecure-policy", "--src-tls-verify=false", source, target]
    subprocess.run(words, check=True)


async def test_unused_images_are_removed_after_a_day(
    registry: RunningRegistry, store: ImageStore, data_dir: DataDir
) -> None:
    root = await pull(store, registry.push("old", make_image(make_tar({"a": "1"}))))
    used_at = root.parent.stat().st_mtime
    remove_old_blobs(data_dir, used_at + 10)
    assert len(list(data_dir.images.iterdir())) == 1
    assert is_kept(root.parent, used_at + 10)
    (data_dir.images / "mine.tar").touch()
    remove_old_blobs(data_dir, used_at + KEEP_S + 60)
    assert list(data_dir.images.iterdir()) == [data_dir.images / "mine.tar"]
    assert not is_kept(root.parent, used_at + KEEP_S + 60)


async def test_an_image_that_does_not_fit_on_the_disk_is_refused_before_it_is_fetched(
    registry: RunningRegistry, store: ImageStore
) -> None:
    image = make_image(make_tar({"huge": "1"}))
    size = len(image.blobs[image.layers[0]])
    manifest = image.manifest.replace(f'"size": {size}}}]'.encode(), b'"size": 60000000000}]')
    huge = type(image)(manifest, image.blobs, image.layers)
    with pytest.raises(ImageError, match=r"needs about .* GB"):
        await pull(store, registry.push("huge", huge))
    assert registry.count_reads(image.layers[0]) == 0
