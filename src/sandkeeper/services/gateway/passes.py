"""Passes: what a browser keeps to see one preview, and the codes that it exchanges for them.

A pass is good for one owner and one port, on one host: it is a cookie that only this host gets. It
names what it came from, a share link or a login; when that is revoked, so is the pass.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import jwt

from sandkeeper.hosting.keeper_keys import load_operator_key
from sandkeeper.settings import Settings

PASS_COOKIE: Final = "sandkeeper_preview"  # noqa: S105  Its name.
HOST_PASS_COOKIE: Final = f"__Host-{PASS_COOKIE}"
"""The same where TLS is: browsers take it only from this very host, secure and for all paths."""
CODE_TTL_S: Final = 60
PASS_TTL_S: Final = 12 * 3600
ALGORITHM: Final = "HS256"


class PassRight(StrEnum):
    """What admits the holder."""

    LINK = "link"
    """A share link."""
    READ = "read"
    """A login that may read the project."""
    OPERATE = "operate"
    """A login that may also change it."""


@dataclass(frozen=True, slots=True)
class PreviewPass:
    """Who may see which preview, and until when."""

    owner: str
    port: int | None
    name: str
    right: PassRight
    source_ids: tuple[str, ...]
    """Of the link, or of the login and its key."""
    expires_at: int


class PreviewPasses:
    """Sign and read passes and codes, with keys that follow from the operator's."""

    def __init__(self, settings: Settings, *, is_revoked: Callable[[str], bool]) -> None:
        others = (other.get_secret_value() for other in settings.other_operator_keys)
        self._is_revoked = is_revoked
        self._keys = [
            hmac.digest(key.encode(), b"sandkeeper preview", "sha256")
            for key in (load_operator_key(settings), *others)
        ]
        self._spent: dict[str, int] = {}

    def issue(self, given: PreviewPass) -> str:
        """Return the pass as a cookie's value."""
        return self._sign("preview", given)

    def issue_code(self, given: PreviewPass, code_id: str) -> str:
        """Return a code, good once and for a minute, for such a pass."""
        return self._sign("preview-code", given, jti=code_id, exp=int(time.time()) + CODE_TTL_S)

    def read(self, token: str, *, owner: str, port: int | None) -> PreviewPass | None:
        """Return the pass if it is good for this preview now."""
        return self._verify("preview", token, owner, port)[0]

    def redeem(self, token: str, *, owner: str, port: int | None) -> PreviewPass | None:
        """Return the pass for a code, once in this process, and use the code up."""
        found, claims = self._verify("preview-code", token, owner, port)
        if found is None:
            return None
        now = int(time.time())
        self._spent = {one: until for one, until in self._spent.items() if until >= now}
        if claims["jti"] in self._spent:
            return None
        self._spent[claims["jti"]] = int(claims["exp"])
        return found

    def _sign(self, use: str, given: PreviewPass, **claims: str | int) -> str:
        payload: dict[str, Any] = {
            "sub": given.owner,
            "port": given.port,
            "name": given.name,
            "right": given.right.value,
            "sources": list(given.source_ids),
            "until": given.expires_at,
            "exp": given.expires_at,
            "aud": f"sandkeeper-{use}",
            **claims,
        }
        return jwt.encode(payload, self._keys[0], ALGORITHM)

    def _verify(
        self, use: str, token: str, owner: str, port: int | None
    ) -> tuple[PreviewPass | None, dict[str, Any]]:
        for key in self._keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token, key, algorithms=[ALGORITHM], audience=f"sandkeeper-{use}"
                )
            except jwt.InvalidTokenError:
                continue
            is_here = claims["sub"] == owner and claims["port"] == port
            if not is_here or any(self._is_revoked(one) for one in claims["sources"]):
                break
            found = PreviewPass(
                owner=owner,
                port=port,
                name=claims["name"],
                right=PassRight(claims["right"]),
                source_ids=tuple(claims["sources"]),
                expires_at=claims["until"],
            )
            return found, claims
        return None, {}
