"""Fetch the third-party modules of the dashboard, as `src/sandkeeper/web/vendor.json` names them.

Called by `make vendor`. Each package comes from the npm registry at its exact version, and its
archive must have the hash that the manifest records. To take a new version, change `version`, set
`integrity` to "" and run it again: it writes the new hashes. Look at the difference before you
commit it.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

WEB = Path(__file__).parents[1] / "src/sandkeeper/web"
MANIFEST = WEB / "vendor.json"
FOLDER = WEB / "static/vendor"


def main() -> int:
    """Write every file of the manifest, and the manifest with the hashes of what was written."""
    packages = json.loads(MANIFEST.read_text())
    for package in packages:
        with tempfile.TemporaryDirectory() as place:
            take(package, fetch(package, Path(place)))
    MANIFEST.write_text(json.dumps(packages, indent=2) + "\n")
    wanted = {file["path"] for package in packages for file in package["files"]}
    for file in FOLDER.iterdir():
        if file.name not in wanted and not file.name.endswith(".d.mts"):
            file.unlink()
    return 0


def fetch(package: dict[str, Any], place: Path) -> Path:
    """Return the package's archive; refuse one that is not what the manifest records."""
    name = f"{package['name']}@{package['version']}"
    command = ["npm", "pack", "--silent", "--pack-destination", str(place), name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (archive,) = place.glob("*.tgz")
    integrity = "sha512-" + b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if package["integrity"] not in ("", integrity):
        sys.exit(f"{name} has the hash {integrity}, not {package['integrity']} as recorded.")
    package["integrity"] = integrity
    return archive


def take(package: dict[str, Any], archive: Path) -> None:
    """Write the package's files, without the reference to a source map that is not served."""
    with tarfile.open(archive) as opened:
        for file in package["files"]:
            member = opened.extractfile(f"package/{file['from']}")
            assert member is not None
            lines = member.read().splitlines(keepends=True)
            body = b"".join(line for line in lines if not line.startswith(b"//# sourceMappingURL="))
            (FOLDER / file["path"]).write_bytes(body)
            file["sha256"] = hashlib.sha256(body).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
