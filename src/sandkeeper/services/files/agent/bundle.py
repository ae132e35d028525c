"""The text of what runs inside a sandbox."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def read_script() -> str:
    """Return the rules of what is ignored, and the verbs, in one piece."""
    rules = resources.files("sandkeeper.domain.files").joinpath("ignore_rules.py").read_text()
    parts = ("safe_replace.py", "agent_script.py")
    verbs = "".join(resources.files(__package__).joinpath(name).read_text() for name in parts)
    first = "from __future__ import annotations\n"
    # Loading `typing` would take some milliseconds, for a name that is false there.
    text = (rules + verbs).replace("from typing import TYPE_CHECKING\n", "TYPE_CHECKING = False\n")
    kept = [
        line
        for line in text.replace(first, "").splitlines()
        if not line.startswith("from sandkeeper.") and not line.lstrip().startswith("#")
    ]
    return first + "\n".join(kept)
