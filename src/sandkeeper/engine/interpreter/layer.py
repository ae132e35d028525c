"""The packages of the code interpreter (IPython, numpy, pandas, …) as one read-only layer.

They are installed once for a user of this machine, by pip, for the Python that sandboxes see. Every
engine of that user lays the folder below the disks of sandboxes that have the interpreter. Its name
tells what is in it: other pins make another folder, and the old one stays for what runs on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

from sandkeeper.engine.runtime.bubblewrap.binaries import find_uid_base

SERVICE = "interpreter"
_REVISION = b"2"
_PYTHON = "/usr/bin/python3"
_PINS = "packages.txt"
_HOW = "run `sandkeeper engine interpreter` again"
_PIP = (
    *("-m", "pip", "--python", _PYTHON, "install", "--disable-pip-version-check", "--no-input"),
    *("--no-user", "--no-warn-script-location", "--ignore-installed", "--break-system-packages"),
    *("--require-hashes", "--only-binary", ":all:", "--timeout", "20", "--retries", "2"),
)


class PackagesMissingError(Exception):
    """The packages could not be installed; the message says why and what to do."""


class PackagesLayer:
    """The folder with the packages, for sandboxes whose ids begin at `uid_base` on the host."""

    def __init__(self, uid_base: int | None) -> None:
        self._uid_base = uid_base
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self.folder = Path(cache).expanduser() / "sandkeeper" / self.name_for(uid_base)

    @staticmethod
    def name_for(uid_base: int | None) -> str:
        owner = "own" if uid_base is None else str(uid_base)
        return f"interpreter-{_digest_pins()}-{owner}"

    def add_to(self, layers: tuple[Path, ...], services: tuple[str, ...]) -> tuple[Path, ...]:
        """Return the layers of a sandbox, with this one at the bottom if it should have it."""
        if SERVICE not in services or not self.folder.is_dir():
            return layers
        return (*layers, self.folder)

    def prepare(self, report: Callable[[str], None]) -> None:
        """Install the packages unless they are there. Raises PackagesMissingError."""
        try:
            with self._alone():
                if not self.folder.is_dir():
                    self._install(report)
        except OSError as error:
            raise PackagesMissingError(f"the packages cannot be stored: {error}") from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Wait until no other process installs, and remove what one that died left."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with (self.folder.parent / "interpreter.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for draft in self.folder.parent.glob("interpreter-draft-*"):
                shutil.rmtree(draft, ignore_errors=True)
            yield

    def _install(self, report: Callable[[str], None]) -> None:
        draft = self.folder.with_name(f"interpreter-draft-{uuid.uuid4().hex}")
        try:
            with resources.as_file(_pins()) as pins:
                _run_pip(["--root", str(draft), "-r", str(pins)], report)
            # The folder of a context may be root's home, as on E2B.
            (draft / "root/root").mkdir(parents=True)
            for folder in (draft, draft / "root", draft / "root/root"):
                folder.chmod(0o755)
            if self._uid_base is not None:
                _give_away(draft, self._uid_base)
            draft.rename(self.folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _pins() -> resources.abc.Traversable:
    return resources.files("sandkeeper.engine.interpreter") / _PINS


@functools.cache
def _digest_pins() -> str:
    version = Path(_PYTHON).resolve().name
    return hashlib.sha256(_REVISION + _pins().read_bytes() + version.encode()).hexdigest()[:16]


def _run_pip(arguments: list[str], report: Callable[[str], None]) -> None:
    if not Path(_PYTHON).exists():
        raise PackagesMissingError(f"sandboxes have no Python: install {_PYTHON}, then {_HOW}")
    total = sum(" ; " not in line for line in _pins().read_text().splitlines() if "==" in line)
    collected, said = 0, ""
    with subprocess.Popen(
        [sys.executable, *_PIP, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # As on E2B, every user may add, replace and remove packages: it is a sandbox's own.
        umask=0o000,
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.startswith(("Collecting ", "Processing ")):
                collected += 1
                if collected % 10 == 0:
                    report(f"downloading: {collected} of about {total} packages")
            elif line.startswith("Installing collected"):
                report("installing")
            elif line.startswith("ERROR") or "No module named pip" in line:
                said = line.strip()
    if pip.returncode != 0:
        raise PackagesMissingError(
            f"the code interpreter's packages were not installed: {said or 'pip failed'}; "
            f"check that this machine reaches a Python package index, then {_HOW}"
        )


def _give_away(folder: Path, owner: int) -> None:
    """Make everything the sandbox's root's."""
    for place, names, files in os.walk(folder):
        for path in (place, *(f"{place}/{name}" for name in (*names, *files))):
            os.lchown(path, owner, owner)


def main() -> None:
    """Install the packages for the user who runs this; print the progress."""
    packages = PackagesLayer(find_uid_base())
    try:
        packages.prepare(_say)
    except PackagesMissingError as error:
        sys.exit(str(error))
    _say(f"the packages are in {packages.folder}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
