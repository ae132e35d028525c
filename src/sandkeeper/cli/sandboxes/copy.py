"""`sandkeeper cp`: copy files and folders into a sandbox and out of it."""

from __future__ import annotations

import secrets
import shlex
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandkeeper.cli.connection import Exit, KeeperConnection, UrlOption, fail
from sandkeeper.cli.output import print_message
from sandkeeper.cli.sandboxes.exec import keep_lease
from sandkeeper.domain.owner import OwnerKind

if TYPE_CHECKING:
    from e2b import Sandbox

PLACE = "A local path, or PROJECT:PATH; a relative one is in the home folder of the sandbox."


def cp(
    source: Annotated[str, typer.Argument(help=f"What to copy. {PLACE}")],
    target: Annotated[str, typer.Argument(help="Where to, in the same way.")],
    url: UrlOption = None,
) -> None:
    """Copy a file or a folder into a sandbox, or out of it.

    A paused sandbox is woken first. `sandkeeper files` reads and writes saved files without that.
    """
    there, here = split_place(source), split_place(target)
    if (there is None) is (here is None):
        raise fail(
            Exit.USAGE,
            "One of the two has to be in a sandbox.",
            "sandkeeper cp notes.txt shop:notes.txt",
        )
    project, path = there or here or ("", "")
    local = Path(target if there else source)
    if here and not local.exists():
        raise fail(Exit.NOT_FOUND, f"File or folder {str(local)!r} not found.")
    connection = KeeperConnection(url)
    leased = connection.post(connection.path(project, "leases"), {"holder": "cp"})
    with keep_lease(connection, leased["lease"]):
        _copy(leased["connection"], local, path, is_download=there is not None)


def split_place(text: str) -> tuple[str, str] | None:
    """Return the project and the path of `PROJECT:PATH`; None for a local path."""
    if text.startswith(("/", "./", "../", "~")):
        return None
    name, colon, path = text.partition(":")
    if colon and name in set(OwnerKind):
        rest, colon, path = path.partition(":")
        name = f"{name}:{rest}"
    return (name, path) if colon and name else None


def _copy(access: dict[str, Any], local: Path, path: str, *, is_download: bool) -> None:
    # Imported late: the SDK is slow to import, and most commands do not need it.
    from e2b import FileNotFoundException, Sandbox, SandboxException  # noqa: PLC0415

    from sandkeeper.api.schemas.sessions import SdkConnection  # noqa: PLC0415
    from sandkeeper.client.sdk_handles import build_sdk_sandbox  # noqa: PLC0415

    sandbox = build_sdk_sandbox(Sandbox, SdkConnection(**access))
    try:
        if is_download:
            _download(sandbox, path or ".", local)
        else:
            _upload(sandbox, local, path)
    except FileNotFoundException:
        raise fail(Exit.NOT_FOUND, f"There is no {path!r} in the sandbox.") from None
    except SandboxException as error:
        raise fail(Exit.PROVIDER, f"The copy failed: {error}") from None
    except (OSError, tarfile.TarError) as error:
        raise fail(Exit.FAILURE, f"The copy failed: {error}") from None


def _upload(sandbox: Sandbox, local: Path, path: str) -> None:
    if local.is_file():
        wanted = f"{path}{local.name}" if not path or path.endswith("/") else path
        with local.open("rb") as file:
            sandbox.files.write(wanted, file, request_timeout=0)
        return
    wanted = shlex.quote(path or local.resolve().name)
    archive = f"/tmp/sandkeeper-cp-{secrets.token_hex(8)}.tar"  # noqa: S108  Inside the sandbox.
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            tar.add(local, ".")
        file.seek(0)
        sandbox.files.write(archive, file, request_timeout=0)
    line = f"mkdir -p {wanted} && tar -xf {archive} --no-same-owner -C {wanted}"
    sandbox.commands.run(f"{line}; code=$?; rm -f {archive}; exit $code", timeout=0)


def _download(sandbox: Sandbox, path: str, local: Path) -> None:
    kind = f"if [ -d {shlex.quote(path)} ]; then echo folder; else echo file; fi"
    is_folder = sandbox.commands.run(kind).stdout.strip() == "folder"
    if not is_folder:
        final = local / Path(path).name if local.is_dir() else local
        _receive(sandbox, path, final)
        return
    archive = f"/tmp/sandkeeper-cp-{secrets.token_hex(8)}.tar"  # noqa: S108  Inside the sandbox.
    try:
        sandbox.commands.run(f"tar -cf {archive} -C {shlex.quote(path)} .", timeout=0)
        with tempfile.TemporaryDirectory() as folder:
            received = Path(folder) / "received.tar"
            _receive(sandbox, archive, received)
            local.mkdir(parents=True, exist_ok=True)
            with tarfile.open(received) as tar:
                # A stranger's archive: nothing leaves the target, no device, no set-uid.
                tar.extractall(local, filter="data")
    finally:
        sandbox.commands.run(f"rm -f {archive}")


def _receive(sandbox: Sandbox, path: str, final: Path) -> None:
    """Download to a name beside it first: an interrupted download damages no existing file."""
    part = final.with_name(f".{final.name}.part")
    done = 0
    try:
        with part.open("wb") as file:
            for chunk in sandbox.files.read(path, format="stream"):
                done += file.write(chunk)
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
    if sys.stderr.isatty():
        print_message(f"{done} bytes")
