"""Convert a sandbox to a row, and back.

Environment variables have a column of their own, in which they are encrypted. An older version
wrote them, in plain, into the column of the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

import orjson

from sandkeeper.common.log_names import LOG_NAMES
from sandkeeper.domain.activity import ActivityClass
from sandkeeper.domain.decisions.priority import Overflow, Priority
from sandkeeper.domain.gateway.addresses import find_preview_name, is_named_by_id
from sandkeeper.domain.observe.observation import ObservedStatus
from sandkeeper.domain.owner import Owner, OwnerKind
from sandkeeper.domain.policy import (
    AppOnResume,
    FilesOnResume,
    IdleAction,
    Launch,
    Policy,
    PreviewAccess,
    PreviewUse,
)
from sandkeeper.domain.receipt import parse_summary, render_summary
from sandkeeper.domain.sandbox import GROUPS, Claim, ClaimKind, LastActivity, Sandbox
from sandkeeper.domain.states import KilledReason, State
from sandkeeper.domain.work import parse_work, render_work
from sandkeeper.encryption.keyring import Keyring
from sandkeeper.store.cooperative import yielding
from sandkeeper.store.sandboxes.sealed_env import SealedEnv, seal_env

ACTIVITY_COLUMNS: Final = frozenset(item.name for item in fields(LastActivity))
"""Written only by ``touch`` and the leases: saving an older copy of the record must not overwrite
newer activity.
"""

_COMPOSED: Final = frozenset({"owner", "launch", "policy", "claim", "wake", "work", *GROUPS})
_GROUPED: Final = tuple(
    (group, kind, tuple(item.name for item in fields(kind))) for group, kind in GROUPS.items()
)
_PLAIN: Final = tuple(item.name for item in fields(Sandbox) if item.name not in _COMPOSED)
_NAMES: Final = {kind: frozenset(item.name for item in fields(kind)) for kind in (Launch, Policy)}
_ENUMS: Final[dict[str, Any]] = {
    "state": State,
    "last_active_class": ActivityClass,
    "last_event_seen": ObservedStatus,
    "killed_reason": KilledReason,
}


def to_row(sandbox: Sandbox, keyring: Keyring) -> dict[str, Any]:
    """Return every column of the sandbox."""
    owner = sandbox.owner
    LOG_NAMES.note_sandbox(
        sandbox.id, kind=owner.kind.value, owner_id=owner.id, instance_id=sandbox.instance_id
    )
    row = {name: getattr(sandbox, name) for name in _PLAIN}
    for group, _, names in _GROUPED:
        values = getattr(sandbox, group)
        for name in names:
            row[name] = getattr(values, name)
    for name in _ENUMS:
        row[name] = None if row[name] is None else row[name].value
    claim = sandbox.claim
    return row | {
        **render_owner(owner),
        **render_launch(sandbox.launch, sandbox.owner, keyring),
        "policy": orjson.dumps(asdict(sandbox.policy)).decode(),
        "wake": orjson.dumps(render_summary(sandbox.wake)).decode() if sandbox.wake else None,
        "work": orjson.dumps(render_work(sandbox.work)).decode() if sandbox.work else None,
        "claim_kind": claim.kind.value if claim else None,
        "claim_holder": claim.holder if claim else None,
        "claim_until": claim.until if claim else None,
    }


def render_owner(owner: Owner) -> dict[str, str | None]:
    """Return the columns of an owner; a preview's name only where it cannot be read as the id."""
    return {
        "owner_kind": owner.kind.value,
        "owner_id": owner.id,
        "preview_name": None if is_named_by_id(owner) else find_preview_name(owner),
    }


def render_launch(launch: Launch, owner: Owner, keyring: Keyring) -> dict[str, str | None]:
    """Return the columns of a launch. An owner has one row, so its name is what they are bound to.

    A pool's member changes its owner and its launch at once, before its id is known.
    """
    values = asdict(replace(launch, env={}))
    del values["env"]
    return {
        "launch": orjson.dumps(values).decode(),
        "env": seal_env(launch.env, str(owner), keyring),
    }


def from_row(row: Mapping[Any, Any], keyring: Keyring) -> Sandbox:
    """Return the sandbox of a row."""
    LOG_NAMES.note_sandbox(
        row["id"],
        kind=row["owner_kind"],
        owner_id=row["owner_id"],
        instance_id=row["instance_id"],
    )
    values: dict[str, Any] = {name: row[name] for name in _PLAIN}
    values["state"] = State(row["state"])
    for group, kind, names in _GROUPED:
        found: dict[str, Any] = {name: row[name] for name in names}
        for name in _ENUMS.keys() & found.keys():
            found[name] = None if found[name] is None else _ENUMS[name](found[name])
        values[group] = kind(**found)
    claim = None
    if row["claim_kind"] is not None:
        claim = Claim(ClaimKind(row["claim_kind"]), row["claim_holder"], row["claim_until"])
    owner = Owner(OwnerKind(row["owner_kind"]), row["owner_id"])
    launch = _known(Launch, orjson.loads(row["launch"]))
    if row["env"] is not None:
        launch["env"] = SealedEnv(row["env"], str(owner), keyring)
    return Sandbox(
        **values,
        owner=owner,
        launch=Launch(**launch),
        policy=_policy(_known(Policy, orjson.loads(row["policy"]))),
        claim=claim,
        wake=parse_summary(orjson.loads(row["wake"])) if row["wake"] else None,
        work=parse_work(orjson.loads(row["work"])) if row["work"] else None,
    )


async def from_rows(rows: Iterable[Mapping[Any, Any]], keyring: Keyring) -> list[Sandbox]:
    """Return the sandboxes of many rows."""
    return [from_row(row, keyring) async for row in yielding(rows)]


def _policy(values: dict[str, Any]) -> Policy:
    if "on_idle" in values:
        values["on_idle"] = IdleAction(values["on_idle"])
    if "app_on_resume" in values:
        values["app_on_resume"] = AppOnResume(values["app_on_resume"])
    if "files_on_resume" in values:
        values["files_on_resume"] = FilesOnResume(values["files_on_resume"])
    if values.get("preview_access") is not None:
        values["preview_access"] = PreviewAccess(values["preview_access"])
    if "preview_use" in values:
        values["preview_use"] = PreviewUse(values["preview_use"])
    if values.get("priority") is not None:
        values["priority"] = Priority(values["priority"])
    if values.get("overflow") is not None:
        values["overflow"] = Overflow(values["overflow"])
    return Policy(**values)


def _known(kind: type[Launch | Policy], values: dict[str, Any]) -> dict[str, Any]:
    """Drop what a newer version wrote, so that a downgrade can still read its rows."""
    names = _NAMES[kind]
    return {name: value for name, value in values.items() if name in names}
