"""Routes of E2B's API that this engine leaves out. They answer 501 and say why, never 404."""

from __future__ import annotations

from sandkeeper.engine.control.http import ControlRequest, ControlResponse
from sandkeeper.engine.errors import NotImplementedHereError

_ONE_KEY = "it has one key, in engine.key of its data folder; replace that and restart it"
_NO_TOKENS = "it has no user accounts; use the API key"
_OLD_BUILDS = "they need a Docker image that the client made; use Template.build of SDK 2"
_NO_CLUSTER = "it runs on one machine"

LEFT_OUT: dict[tuple[str, str], tuple[str, str]] = {
    ("POST", "/api-keys"): ("creating API keys", _ONE_KEY),
    ("PATCH", "/api-keys/{id}"): ("renaming API keys", _ONE_KEY),
    ("DELETE", "/api-keys/{id}"): ("deleting API keys", _ONE_KEY),
    ("POST", "/access-tokens"): ("access tokens", _NO_TOKENS),
    ("DELETE", "/access-tokens/{id}"): ("access tokens", _NO_TOKENS),
    ("POST", "/templates"): ("builds of SDK 1", _OLD_BUILDS),
    ("POST", "/v2/templates"): ("builds of SDK 1", _OLD_BUILDS),
    ("POST", "/templates/{id}"): ("builds of SDK 1", _OLD_BUILDS),
    ("POST", "/templates/{id}/builds/{build}"): ("builds of SDK 1", _OLD_BUILDS),
    ("GET", "/nodes"): ("nodes", _NO_CLUSTER),
    ("GET", "/nodes/{id}"): ("nodes", _NO_CLUSTER),
    ("POST", "/nodes/{id}"): ("nodes", _NO_CLUSTER),
}
"""What each is called, and what to do instead."""


class LeftOut:
    """Answers one route that is left out."""

    def __init__(self, name: str, advice: str) -> None:
        self._message = f"this engine does not implement {name}: {advice}"

    async def __call__(self, _request: ControlRequest) -> ControlResponse:
        raise NotImplementedHereError(self._message, error_code="not_implemented")
