"""Environment variables as they are stored: encrypted, and decrypted when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from sandkeeper.encryption.keyring import Keyring, render_prefix


class SealedEnv(Mapping[str, str]):
    """The variables of one owner's sandbox, decrypted on first use.

    Most readers of a record never ask for them; and one value that does not decrypt must not hide
    the whole fleet.
    """

    def __init__(self, sealed: str, owner: str, keyring: Keyring) -> None:
        self.sealed = sealed
        self.owner = owner
        self._keyring = keyring
        self._opened: dict[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._open()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._open())

    def __len__(self) -> int:
        return len(self._open())

    def __bool__(self) -> bool:
        return True  # Empty ones are not stored.

    def __repr__(self) -> str:
        return f"SealedEnv({self.owner!r})"

    def _open(self) -> dict[str, str]:
        if self._opened is None:
            text = self._keyring.open(self.sealed, context=make_context(self.owner))
            self._opened = orjson.loads(text)
        return self._opened


def seal_env(env: Mapping[str, str], owner: str, keyring: Keyring) -> str | None:
    """Return variables as they are stored; those that are sealed well already stay as they are."""
    if not env:
        return None
    if (
        isinstance(env, SealedEnv)
        and env.owner == owner
        and env.sealed.startswith(render_prefix(keyring.current_id))
    ):
        return env.sealed
    return keyring.seal(orjson.dumps(dict(env)).decode(), context=make_context(owner))


def make_context(owner: str) -> str:
    """Return what the variables of this owner are bound to."""
    return f"sandboxes.env:{owner}"
