"""The command line, one file a noun."""

import sys

# httpx looks for its own command line, which needs rich and pygments: a seventh of our start.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
