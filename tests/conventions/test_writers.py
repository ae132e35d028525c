"""The rules of "Who may write what" in docs/architecture.md, read off the source.

What a rule says about the moment (the claim is valid, the provider confirmed it) is tested where it
happens; here it is checked that no other module does it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import sandkeeper

SOURCE = Path(sandkeeper.__file__).parent
OBSERVED = {
    "state",
    "state_since",
    "instance_id",
    "run_id",
    "run_started_at",
    "end_at",
    "end_as_of",
    "observed_at",
    "state_as_of",
    "state_received_at",
    "last_event_at",
    "last_event_seen",
    "last_event_id",
    "last_verified_at",
    "killed_at",
    "killed_reason",
}
ACTS = {"create", "connect", "pause", "kill", "set_timeout"}


@cache
def list_modules(*folders: str) -> dict[str, ast.Module]:
    paths = [path for folder in folders for path in sorted((SOURCE / folder).rglob("*.py"))]
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in paths}


@cache
def list_calls(*folders: str) -> list[tuple[str, ast.Call, str]]:
    """Return every method call: its module, the call, and what it is called on, as written."""
    return [
        (path, node, ast.unparse(node.func.value))
        for path, tree in list_modules(*folders).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def find_writers(store: str, *methods: str) -> set[str]:
    """Return the modules that call these methods of a repository."""
    return {
        path
        for path, call, owner in list_calls("services", "background", "api", "integrations")
        if owner.endswith(f".{store}") and ast.unparse(call.func).split(".")[-1] in methods
    }


def find_acts(*names: str) -> set[str]:
    """Return the modules that call these acts of a provider."""
    return {
        path
        for path, call, owner in list_calls("services", "background", "api", "integrations")
        if ast.unparse(call.func).split(".")[-1] in names
        and (owner == "provider" or owner.endswith(("_provider", "providers.get(held)")))
    }


def test_only_record_changes_observed_state() -> None:
    writers = defaultdict(set)
    for path, call, _ in list_calls("domain", "services", "background", "api", "store"):
        if ast.unparse(call.func).endswith(".evolve"):
            for keyword in call.keywords:
                if keyword.arg in OBSERVED:
                    writers[path].add(keyword.arg)
    assert set(writers) == {
        "domain/decisions/generation.py",
        "domain/observe/transitions.py",
        "services/lifecycle/lost_creations.py",
    }
    absorbing = {
        path
        for path, tree in list_modules("services", "background", "api").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "absorb"
    }
    # Adoption makes a first record by it. The other two ask what an answer would change, and pass
    # it to `record`.
    assert absorbing == {
        "services/observe/adoption.py",
        "services/observe/observations.py",
        "services/observe/reconciliation.py",
        "services/observe/unrecorded.py",
    }


def test_each_write_of_a_sandbox_has_its_modules() -> None:
    claims = "services/lifecycle/claims.py"
    observations = "services/observe/observations.py"
    assert find_writers("sandboxes", "insert") == {
        "services/lifecycle/creation.py",
        "services/observe/adoption.py",
    }
    assert find_writers("sandboxes", "claim", "release", "claim_due") == {claims}
    assert find_writers("sandboxes", "number_work") == {"services/files/unclaimed.py"}
    assert find_writers("bulk", "save") == {claims, observations}
    confirming = find_writers("sandboxes", "confirm")
    assert confirming == {observations, "services/observe/reconciliation.py"}
    assert find_writers("sandboxes", "save") == {
        claims,
        observations,
        "services/lifecycle/lost_creations.py",
        "services/observe/adoption.py",
        "services/wake/after_resume.py",
        "services/wake/app_monitor.py",
        "services/wake/executor.py",
        "services/wake/prewarm.py",
        "services/wake/record_writer.py",
    }


def test_each_act_on_the_provider_has_its_modules() -> None:
    assert find_acts(*ACTS) == {
        "services/lifecycle/instances.py",
        "services/lifecycle/lifecycle.py",
        "services/observe/adoption.py",
        "services/observe/leaks.py",
        "services/wake/after_resume.py",
        "services/wake/executor.py",
    }


def test_only_activity_moves_the_last_activity() -> None:
    touching = {
        path
        for path, call, owner in list_calls("services", "background", "api", "integrations")
        if owner.endswith("_sandboxes") and ast.unparse(call.func).endswith(".touch")
    }
    assert touching == {"services/activity/buffer.py"}
    naming = {
        path
        for path, tree in list_modules("store/sandboxes", "store/sessions").items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.keyword) and node.arg == "last_active_at")
        or (
            isinstance(node, ast.Dict)
            and "'last_active_at'" in map(ast.unparse, filter(None, node.keys))
        )
    }
    assert naming <= {
        "store/sandboxes/activity_sql.py",
        "store/sessions/leases.py",
        "store/sessions/pools.py",
        "store/sessions/usage_history.py",
    }
    evolving = [
        path
        for path, call, _ in list_calls("domain", "services", "background", "api")
        if ast.unparse(call.func).endswith(".evolve")
        and any(keyword.arg == "last_active_at" for keyword in call.keywords)
    ]
    assert evolving == []


def test_only_a_creation_and_a_wake_create_instances() -> None:
    assert find_acts("create") == {"services/lifecycle/instances.py"}
    beginning = {
        path
        for path, tree in list_modules("services", "background", "api").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "begin_generation"
    }
    assert beginning == {"services/wake/executor.py"}


def test_only_the_reconciler_removes_what_no_record_uses() -> None:
    users = {
        path
        for path, tree in list_modules("services", "background", "api").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "sandkeeper.services.observe.leaks"
    }
    assert users == {
        "services/composition.py",
        "services/observe/reconciliation.py",
        "services/observe/unrecorded.py",
    }


def test_only_the_engine_opens_its_database() -> None:
    outside = {
        path
        for path, tree in list_modules(".").items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("sandkeeper.engine.storage")
        and not path.startswith("engine/")
    }
    # It reads the key and the address, which are files for other programs.
    assert outside == {"cli/server/engine.py"}
