"""The table of clients in docs/clients.md: written from what ran, with the versions of the pins."""

from __future__ import annotations

import fcntl
import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "clients"
PAGE = ROOT / "docs" / "clients.md"
STEPS = ("create", "run", "files", "pause", "kill")
ROW = re.compile(
    r"^\| `(?P<package>[^`]+)` \| (?P<version>\S+) \| (?P<sdk>\S+) \|.*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Client:
    """A program that others wrote, and its folder in tests/clients."""

    name: str
    package: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def program(self) -> Path:
        return next(self.folder.glob("life.*"))

    @property
    def version(self) -> str:
        return self.find_version(self.package)

    @property
    def sdk(self) -> str:
        """Return the version of E2B's own package that it uses, which is the SDK's."""
        return self.find_version("e2b")

    def find_version(self, package: str) -> str:
        pins = self.folder / "requirements.txt"
        if pins.exists():
            found = re.search(rf"^{re.escape(package)}==([^ ;]+)", pins.read_text(), re.MULTILINE)
            return found[1] if found else "none"
        locked = json.loads((self.folder / "package-lock.json").read_text())["packages"]
        return str(locked.get(f"node_modules/{package}", {}).get("version", "none"))


CLIENTS = (
    Client("cli", "@e2b/cli"),
    Client("smolagents", "smolagents"),
    Client("agno", "agno"),
    Client("crewai-tools", "crewai-tools"),
    Client("langchain-e2b", "langchain-e2b"),
    Client("openai-agents", "openai-agents"),
    Client("computesdk", "@computesdk/e2b"),
    Client("mastra", "@mastra/e2b"),
    Client("inspect-sandboxes", "inspect-sandboxes"),
    Client("harbor", "harbor"),
)


def render_row(client: Client, held: list[str]) -> str:
    """Return the client's line in the table, given the steps that it printed."""
    cells = " | ".join("yes" if step in held else "no" for step in STEPS)
    return f"| `{client.package}` | {client.version} | {client.sdk} | {cells} |"


def read_row(client: Client) -> str | None:
    """Return the client's line in the table as it is now."""
    rows = {found["package"]: found[0] for found in ROW.finditer(PAGE.read_text())}
    return rows.get(client.package)


def write_row(client: Client, row: str) -> None:
    """Replace the client's line; other workers may be writing theirs."""
    with PAGE.open("r+") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        old = read_row(client)
        assert old is not None, f"docs/clients.md has no line for {client.package}"
        page.write(PAGE.read_text().replace(old, row))
        page.truncate()
