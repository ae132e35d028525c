"""Which languages this sandbox can run, and the line that starts each of them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_INSIDE = "sandkeeper.engine.interpreter.inside"
# Makes the kernel's modules out of their texts, and runs the last.
_PYTHON_LINE = (
    "import json,sys,types\n"
    "for n,t in json.loads(sys.argv[3]):\n"
    " m=sys.modules[n]=types.ModuleType(n);exec(compile(t,n,'exec'),m.__dict__)\n"
    "m.main(int(sys.argv[1]),int(sys.argv[2]),sys.argv[4])\n"
)

LANGUAGES = {
    "python": ("python", "python3"),
    "javascript": ("javascript", "node"),
    "js": ("javascript", "node"),
    "typescript": ("typescript", "node"),
    "ts": ("typescript", "node"),
    "bash": ("bash", "bash"),
    "sh": ("bash", "bash"),
}
"""Accepted names → the language's name and the program that runs it."""


_NEEDED = {
    "typescript": "node 22.13 or later",
    "r": "a Jupyter kernel (in Debian: r-cran-irkernel)",
    "java": "a Jupyter kernel (such as IJava)",
}
_KERNELS = ("~/.local/share/jupyter", "/usr/local/share/jupyter", "/usr/share/jupyter")


class MissingLanguageError(Exception):
    """The language is unknown, or its program is not installed in this sandbox."""


def check_language(text: str | None) -> str:
    """Return the language's plain name."""
    wanted = (text or "python").lower()
    name, program = LANGUAGES.get(wanted, (wanted, ""))
    kernels = find_kernels()
    if (program and _is_there(name, program)) or name in kernels:
        return name
    own = {one for one, needed in LANGUAGES.values() if _is_there(one, needed)}
    here = sorted(own | kernels.keys())
    needed = _NEEDED.get(name, program)
    why = f"needs {needed}, which is not installed" if needed else "is not supported"
    raise MissingLanguageError(
        f"the language '{name[:50]}' {why}; this sandbox runs {', '.join(here)}"
    )


def _is_there(language: str, program: str) -> bool:
    if language != "typescript":
        return shutil.which(program) is not None
    # Only a newer Node reads TypeScript, and only Node itself knows.
    asked = "process.exit(require('node:module').stripTypeScriptTypes ? 0 : 1)"
    try:
        return subprocess.run(["node", "-e", asked], check=False).returncode == 0
    except OSError:
        return False


def find_kernels() -> dict[str, str]:
    """Return the name of the Jupyter kernel for each language that has one and is not our own."""
    found: dict[str, str] = {}
    if importlib.util.find_spec("jupyter_client") is None:
        return found
    for place in _KERNELS:
        folder = os.path.join(os.path.expanduser(place), "kernels")  # noqa: PTH111, PTH118
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():  # noqa: PTH112, PTH208
            try:
                with open(os.path.join(folder, name, "kernel.json")) as file:  # noqa: PTH118, PTH123
                    language = str(json.load(file)["language"]).lower()
            except (OSError, ValueError, KeyError):
                continue
            if language not in LANGUAGES:
                found.setdefault(language, name)
    return found


def list_arguments(
    language: str, texts: Mapping[str, str], requests: int, reports: int
) -> list[str]:
    """Return the words that start a language's process."""
    if language == "bash":
        # Interactive, because only then an interrupt ends the code and not the shell.
        return ["bash", "--noprofile", "--norc", "--noediting", "-i"]
    numbers = [str(requests), str(reports)]
    if language in ("javascript", "typescript"):
        return ["node", "--no-warnings", "-e", texts["node_kernel.js"], "--", *numbers]
    if language != "python":
        kernel, more = "jupyter_bridge", f"{language} {find_kernels()[language]}"
    elif importlib.util.find_spec("IPython"):
        kernel, more = "ipython_kernel", texts["charts.py"]
    else:
        kernel, more = "plain_kernel", ""
    modules = [(f"{_INSIDE}.{name}", texts[f"{name}.py"]) for name in ("reports", kernel)]
    return ["python3", "-u", "-c", _PYTHON_LINE, *numbers, json.dumps(modules), more]
