"""The text of what runs inside a sandbox."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import Final

MODULES: Final = ("common", "safe_replace", "walk", "collect", "place", "main")
IMPORT: Final = re.compile(r"^from sandkeeper\.\S+ import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)
FIRST: Final = "from __future__ import annotations\n"


@cache
def read_script() -> str:
    """Return the rules of what is ignored, and the verbs, in one piece."""
    rules = resources.files("sandkeeper.domain.files").joinpath("ignore_rules.py").read_text()
    inside = resources.files(__package__).joinpath("inside")
    texts = [rules, *(inside.joinpath(f"{name}.py").read_text() for name in MODULES)]
    # Loading `typing` would take some milliseconds, for a name that is false there.
    text = "".join(texts).replace("from typing import TYPE_CHECKING\n", "TYPE_CHECKING = False\n")
    text = IMPORT.sub("", text.replace(FIRST, ""))
    kept = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return FIRST + "\n".join(kept)
