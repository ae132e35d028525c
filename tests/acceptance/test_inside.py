"""A terminal in a sandbox, and copies into it and out of it, by commands."""

from __future__ import annotations

import io
import os
import pty
import select
import subprocess
import tarfile
import termios
from pathlib import Path

from sandkeeper.cli.sandboxes.copy import split_place
from support.keeper_process import COMMAND, Keeper


def test_a_shell_is_a_terminal_with_its_size_its_signals_and_its_exit_code(
    keeper: Keeper, project: str
) -> None:
    keeper.run("create", project, "--idle", "10m")
    keeper.run("pause", project, "--wait")
    assert keeper.run("shell", project, check=False).returncode == 2, "a pipe is no terminal"
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (33, 101))
    before = termios.tcgetattr(theirs)
    running = subprocess.Popen(
        [*COMMAND, "shell", project],
        env=keeper.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        # What is typed is shown as well: only the answer has the sum.
        # One process says it and sleeps, so that Ctrl-C finds it in the foreground.
        type_line(ours, "stty size; sh -c 'echo $((20000+3)); exec sleep 600'")
        assert "33 101" in read_until(ours, "20003")
        os.write(ours, b"\x03")
        type_line(ours, "echo $((20000+4))")
        read_until(ours, "20004")
        type_line(ours, "exit 7")
        assert running.wait(60) == 7
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    finally:
        running.kill()
        running.wait(30)
        os.close(ours)
        os.close(theirs)


def type_line(terminal: int, line: str) -> None:
    os.write(terminal, f"{line}\r".encode())


def read_until(terminal: int, text: str) -> str:
    shown = ""
    while text not in shown:
        assert select.select([terminal], [], [], 60)[0], f"only {shown!r}"
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def test_files_and_folders_are_copied_both_ways_and_an_archive_cannot_escape(
    keeper: Keeper, project: str, tmp_path: Path
) -> None:
    keeper.run("create", project, "--idle", "10m")
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "run.sh").write_text("echo hi\n")
    (folder / "deep" / "run.sh").chmod(0o755)
    (tmp_path / "one file").write_bytes(b"\0binary")
    keeper.run("cp", str(folder), f"{project}:there")
    keeper.run("cp", str(tmp_path / "one file"), f"{project}:there/")
    assert keeper.run("exec", project, "--", "there/deep/run.sh").stdout == "hi\n"
    keeper.run("cp", f"{project}:there", str(tmp_path / "back"))
    assert (tmp_path / "back" / "one file").read_bytes() == b"\0binary"
    assert os.access(tmp_path / "back" / "deep" / "run.sh", os.X_OK)
    missing = keeper.run("cp", f"{project}:nowhere", str(tmp_path / "x"), check=False)
    assert missing.returncode == 3, missing.stderr
    assert keeper.run("cp", "a", "b", check=False).returncode == 2

    # A hostile `tar` in the sandbox answers with an archive that leads out of the target.
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"))
    (tmp_path / "evil.tar").write_bytes(evil.getvalue())
    keeper.run("cp", str(tmp_path / "evil.tar"), f"{project}:evil.tar")
    script = '#!/bin/sh\nfor a; do case $a in /tmp/*.tar) cp ~/evil.tar "$a";; esac; done\n'
    (tmp_path / "tar").write_text(script)
    keeper.run("cp", str(tmp_path / "tar"), f"{project}:tar")
    keeper.run("exec", project, "--", "chmod +x tar; sudo cp tar /usr/local/bin/tar")
    refused = keeper.run("cp", f"{project}:there", str(tmp_path / "target"), check=False)
    assert refused.returncode == 1, refused.stderr
    assert not (tmp_path / "escaped").exists()


def test_a_place_in_a_sandbox_is_told_from_a_local_path() -> None:
    assert split_place("shop:a/b") == ("shop", "a/b")
    assert split_place("job:build-1:a") == ("job:build-1", "a")
    assert split_place("./a:b") is split_place("/a:b") is split_place("a") is None


def test_all_running_sandboxes_are_paused_after_a_yes(keeper: Keeper, project: str) -> None:
    keeper.run("create", project)
    assert keeper.run("pause", "--all", check=False).returncode == 2, "not confirmed"
    assert keeper.run("pause", check=False).returncode == 2
    assert f"{project}\tPAUSED" in keeper.run("pause", "--all", "--yes", check=False).stdout
