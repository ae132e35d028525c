"""The shape of the source: sizes, names, imports. Exceptions are listed, and the lists shrink."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import sandkeeper
from sandkeeper.services.monitoring.feature_flags import FeatureFlag
from sandkeeper.settings import Settings
from sandkeeper.store.schema import latest_revision

SOURCE = Path(sandkeeper.__file__).parent
Nodes = Sequence[tuple[str, ast.AST]]

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 500
FOLDER_MODULES_MAX = 15
CONSTRUCTOR_PARAMETERS_MAX = 8

LARGE_FOLDERS = {"store/migrations/versions"}
"""Folders that have more modules than a reader can keep in mind: one is added with each change."""

LONG_CONSTRUCTORS: set[str] = set()
"""Classes whose constructors still have too many parameters."""

REPEATED_CLASSES: set[str] = set()
"""Class names that are still defined in more than one module."""

TYPE_CHECKING_BLOCKS = {
    "__init__.py": "importing the package loads as little as possible",
    "background/tasks.py": "a type that exists only in a stub of the standard library",
    "cli/main.py": "a private name of typer",
    "cli/sandboxes/copy.py": "the command line starts quickly",
    "cli/sandboxes/exec.py": "the command line starts quickly",
    "cli/sandboxes/shell.py": "the command line starts quickly",
    "cli/deployment": "the command line starts quickly",
    "cli/server": "the command line starts quickly",
    "api/schemas/__init__.py": "each module of shapes is imported when it is first used",
    "client": "importing the client does not load pydantic, the SDK, an engine or a keeper",
    "domain/files/ignore_rules.py": "it also runs inside a sandbox, without typing",
    "engine/interpreter/inside": "it runs inside a sandbox",
    "api/inngest.py": "the package is optional",
    "common/tracing.py": "a process without traces loads no OpenTelemetry",
    "hosting/discovery.py": "a client that is given its URL and key loads no settings",
    "services/files/agent/inside": "it runs inside a sandbox",
    "services/composition.py": "the libraries of OpenID Connect are loaded only where it is used",
    "services/files/blobs.py": "the types exist only in a stub of obstore",
}
"""Folders and modules that import only for type checking, and why."""


PROPERTIES = {"property", "cached_property", "functools.cached_property"}
"""A property is named after what it is, and may be described by it."""

NO_VERBS = re.compile(
    r"(A|All|An|Another|As|At|Before|Each|Every|Everything|False|How|If|In|Its?|Never|No|None|Not|"
    r"Nothing|On|One|Only|Several|The|These|This|Those|True|Two|What|When|Where|Whether|Which|\W)\b"
)
"""Words with which a docstring does not say what its function does."""


@pytest.fixture(scope="module")
def modules() -> Mapping[str, ast.Module]:
    """Every module of the product, parsed once, by its path."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text())
        for path in sorted(SOURCE.rglob("*.py"))
    }


@pytest.fixture(scope="module")
def nodes(modules: Mapping[str, ast.Module]) -> Nodes:
    """Every node of every module, found once."""
    return [(path, node) for path, tree in modules.items() for node in ast.walk(tree)]


def test_functions_and_modules_stay_readable(
    modules: Mapping[str, ast.Module], nodes: Nodes
) -> None:
    long: list[str] = []
    for path in modules:
        lines = (SOURCE / path).read_text().count("\n")
        if lines > MODULE_LINES_MAX:
            long.append(f"{path}: {lines} lines")
    for path, node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                long.append(f"{path}:{node.name}: {lines} lines")
    assert not long


def test_a_folder_has_few_modules(modules: Mapping[str, ast.Module]) -> None:
    counts = Counter(
        path.rpartition("/")[0] for path in modules if not path.endswith("__init__.py")
    )
    large = {folder for folder, count in counts.items() if count > FOLDER_MODULES_MAX}
    assert large <= LARGE_FOLDERS


def test_a_constructor_has_few_parameters(nodes: Nodes) -> None:
    long: set[str] = set()
    for _, node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                if count > CONSTRUCTOR_PARAMETERS_MAX:
                    long.add(node.name)
    assert long <= LONG_CONSTRUCTORS


def test_a_class_name_is_defined_in_one_module(modules: Mapping[str, ast.Module]) -> None:
    defined: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                defined[node.name].add(path)
    repeated = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert set(repeated) <= REPEATED_CLASSES, repeated


def test_docstrings_of_functions_begin_with_a_verb(nodes: Nodes) -> None:
    """Ruff's D401 finds verbs in another mood; this finds sentences that begin without a verb."""
    found = [
        f"{path}:{node.lineno}: {text.splitlines()[0]}"
        for path, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(ast.unparse(decorator) in PROPERTIES for decorator in node.decorator_list)
        and (text := ast.get_docstring(node))
        and NO_VERBS.match(text)
    ]
    assert not found


def test_imports_for_type_checking_only_have_a_reason(nodes: Nodes) -> None:
    found = {
        path
        for path, node in nodes
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    }
    listed = {
        path
        for path in found
        if any(path == one or path.startswith(f"{one}/") for one in TYPE_CHECKING_BLOCKS)
    }
    assert found == listed


SHARED_WITH_ENGINE = {"sandkeeper.common.http_protocol", "sandkeeper.common.private_files"}


def test_the_engine_imports_nothing_of_the_keeper(nodes: Nodes) -> None:
    for path, node in nodes:
        if not path.startswith("engine/"):
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "sandkeeper" and len(parts) > 1:
                is_shared = name in SHARED_WITH_ENGINE
                assert parts[1] in {"engine", "relay"} or is_shared, f"{path} imports {name}"


def test_every_setting_is_read_somewhere(nodes: Nodes) -> None:
    """As an attribute of the settings, by `getattr`, or as one of the switches, by its value."""
    read = {
        name for path, node in nodes if path != "settings.py" for name in list_settings_read(node)
    }
    switches = {flag.value for flag in FeatureFlag}
    assert set(Settings.model_fields) - read - switches == set()


def list_settings_read(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        owner = node.value
        name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
        return {node.attr} if name.endswith("settings") else set()
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
        return {
            argument.value
            for argument in node.args[1:]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        }
    return set()


def test_the_keeper_and_the_commands_start_without_the_optional_packages() -> None:
    program = """
import importlib, pkgutil, sys
for name in ("inngest", "mcp", "e2b_code_interpreter", "e2b_desktop", "pytest"):
    sys.modules[name] = None
import sandkeeper.app, sandkeeper.cli
import sandkeeper.integrations.backend
import sandkeeper.integrations.embedded, sandkeeper.integrations.fastapi_router
for module in pkgutil.walk_packages(sandkeeper.cli.__path__, "sandkeeper.cli."):
    importlib.import_module(module.name)
print("started")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.stdout == "started\n", ran.stderr


def test_the_migrations_are_one_chain() -> None:
    assert latest_revision(), "two migrations follow the same one: change `down_revision` of one"
