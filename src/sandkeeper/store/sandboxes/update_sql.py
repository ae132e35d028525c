"""The update of a whole row, built once: building one of forty columns costs more than running it.

Activity is not part of it, because only ``touch`` and the leases write it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, update

from sandkeeper.domain.sandbox import Sandbox
from sandkeeper.encryption.keyring import Keyring
from sandkeeper.store.sandboxes.mapping import ACTIVITY_COLUMNS, to_row
from sandkeeper.store.tables.sandboxes import SANDBOXES

_T = SANDBOXES.c
_WRITTEN: Final = tuple(
    column.name for column in _T if column.name != "id" and column.name not in ACTIVITY_COLUMNS
)

UPDATE: Final = (
    update(SANDBOXES)
    .where(_T.id == bindparam("row_id"))
    .values({name: bindparam(f"new_{name}") for name in _WRITTEN})
)
"""Write a row whose version the caller has checked under a lock."""

UPDATE_IF_UNCHANGED: Final = UPDATE.where(_T.version == bindparam("expected")).returning(SANDBOXES)
"""Write a row that still has the expected version, and return it with its activity."""


def bind_row(sandbox: Sandbox, keyring: Keyring) -> dict[str, object]:
    """Return the values for ``UPDATE``; the other statement also needs ``expected``."""
    row = to_row(sandbox, keyring)
    return {"row_id": sandbox.id} | {f"new_{name}": row[name] for name in _WRITTEN}
