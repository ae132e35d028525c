"""An engine of an ordinary user who has subordinate ids, as the shipped command."""

from __future__ import annotations

import os
from pathlib import Path

from support.engine_process import Engine
from support.ordinary_user import find_python, make_environment

OWNER = 61_235
FIRST_ID = 700_000_000
ID_COUNT = 65_536
# In a mount namespace of its own, so that the machine's user database stays as it is.
_SCRIPT = """
mount --bind "$0/passwd" /etc/passwd
mount --bind "$0/ids" /etc/subuid
mount --bind "$0/ids" /etc/subgid
exec setpriv --reuid={owner} --regid={owner} --clear-groups -- "$@"
"""


class SubordinateEngine(Engine):
    """The engine, run by a user whom the user database gives a range of ids."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "engine/data")
        self._folder = folder
        self.data.parent.mkdir()
        os.chown(self.data.parent, OWNER, OWNER)
        folder.chmod(0o755)
        known = Path("/etc/passwd").read_text()
        (folder / "passwd").write_text(f"{known}keeper-test:x:{OWNER}:{OWNER}::/tmp:/bin/sh\n")
        (folder / "ids").write_text(f"keeper-test:{FIRST_ID}:{ID_COUNT}\n")

    def command(self) -> list[str]:
        python = find_python()
        assert python is not None
        script = ["unshare", "--mount", "sh", "-ec", _SCRIPT.format(owner=OWNER)]
        environment = [f"{name}={value}" for name, value in make_environment().items()]
        line = ["env", "-i", *environment, python, "-m", "sandkeeper.cli.main", "engine"]
        return [*script, str(self._folder), *line]
