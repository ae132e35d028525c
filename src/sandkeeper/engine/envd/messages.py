"""E2B's message classes without the rest of its SDK.

They are inside the SDK's package, whose `__init__` imports clients, models and HTTP libraries that
the engine never uses: half of the engine's start-up time. So the package is bypassed while they are
loaded. A later import of the SDK in the same process gets all of it, with these same classes.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from types import ModuleType

_NEEDED = ("e2b.envd.filesystem.filesystem_connect", "e2b.envd.process.process_connect")


def load_messages() -> None:
    """Load the classes, so that importing them afterwards finds them loaded."""
    if "e2b" in sys.modules:
        return
    found = importlib.machinery.PathFinder.find_spec("e2b")
    if found is None or found.submodule_search_locations is None:
        # The import that follows tells what is missing, in Python's own words.
        return
    package = ModuleType("e2b")
    package.__path__ = list(found.submodule_search_locations)
    package.__spec__ = found
    sys.modules["e2b"] = package
    try:
        for name in _NEEDED:
            importlib.import_module(name)
    finally:
        del sys.modules["e2b"]
