"""Whose name in a host name it is."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sandkeeper.domain.gateway.addresses import find_owner_by_id
from sandkeeper.domain.owner import Owner
from sandkeeper.services.deps import Deps

# Owners of names with a hash. A name's owner never changes, so only memory bounds them; those that
# are not known are looked up again, so that a new project is found at once.
KNOWN_MAX: Final = 10_000


class PreviewNames:
    """Find the owner of a name; most names are ids, and cost no query."""

    def __init__(self, deps: Deps) -> None:
        self._sandboxes = deps.store.sandboxes
        self._known: OrderedDict[str, Owner] = OrderedDict()

    async def find(self, name: str) -> Owner | None:
        """Return the owner; None if no sandbox has a name with this hash."""
        owner = find_owner_by_id(name) or self._known.get(name)
        if owner is None:
            owner = await self._sandboxes.find_owner_by_preview_name(name)
            if owner is not None:
                self._known[name] = owner
                if len(self._known) > KNOWN_MAX:
                    self._known.popitem(last=False)
        return owner
