"""Who asks, and whether they may see this preview."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from sandkeeper.api.auth import Access, Authenticator, Role, admit
from sandkeeper.domain.errors import AccessError, ForbiddenError
from sandkeeper.domain.gateway.addresses import PreviewAddress
from sandkeeper.domain.gateway.requests import RequestKind
from sandkeeper.domain.gateway.visits import Admission
from sandkeeper.domain.owner import Owner
from sandkeeper.domain.policy import PreviewAccess
from sandkeeper.relay.credentials import looks_like_ours
from sandkeeper.services.gateway.passes import (
    HOST_PASS_COOKIE,
    PASS_COOKIE,
    PassRight,
    PreviewPass,
    PreviewPasses,
)
from sandkeeper.services.gateway.urls import PreviewUrls

PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks, as the list of requests and the log name them."""

    name: str = PUBLIC
    is_member: bool = False
    """Whether they may see what the app printed: those who may read the project."""


class Visitors:
    """Recognize visitors by their pass, or by a key or client token."""

    def __init__(self, authenticator: Authenticator, passes: PreviewPasses, urls: PreviewUrls):
        self._authenticator = authenticator
        self._passes = passes
        self._urls = urls

    def admit(
        self,
        owner: Owner | None,
        address: PreviewAddress,
        access: PreviewAccess,
        kind: RequestKind,
        headers: Mapping[str, str],
    ) -> tuple[Admission, Visitor]:
        """Return whether they may see it, and who they are."""
        if owner is None:
            is_open = access is PreviewAccess.PUBLIC
            return (Admission.ADMITTED if is_open else Admission.UNKNOWN), Visitor()
        admission, visitor = self._admit_bearer(owner, access, headers)
        if admission is not None:
            return admission, visitor
        held = self.find_pass(owner, address, headers)
        if held is not None and _suffices(held, access):
            if self._comes_from_elsewhere(address, kind, headers):
                return Admission.REFUSED, Visitor(held.name)
            return Admission.ADMITTED, Visitor(held.name, held.right is not PassRight.LINK)
        if access is PreviewAccess.PUBLIC:
            return Admission.ADMITTED, Visitor()
        return (Admission.UNKNOWN if held is None else Admission.REFUSED), Visitor()

    def find_pass(
        self, owner: Owner, address: PreviewAddress, headers: Mapping[str, str]
    ) -> PreviewPass | None:
        """Return the pass that the browser sent, if it is good here."""
        header = headers.get("cookie", "")
        if PASS_COOKIE not in header:
            return None
        try:
            sent = SimpleCookie(header)
        except CookieError:
            return None
        # Where TLS is, only the one counts that no other host can have set.
        morsel = sent.get(PASS_COOKIE if self._urls.is_local else HOST_PASS_COOKIE)
        if morsel is None:
            return None
        return self._passes.read(morsel.value, owner=str(owner), port=address.port)

    def _admit_bearer(
        self, owner: Owner, access: PreviewAccess, headers: Mapping[str, str]
    ) -> tuple[Admission | None, Visitor]:
        """Admit a program with a key or client token; any other Authorization is the app's."""
        scheme, _, credential = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not looks_like_ours(credential.strip().encode("latin-1")):
            return None, Visitor()
        needed = Access.OPERATE_ONE if access is PreviewAccess.PRIVATE else Access.READ_ONE
        try:
            caller = self._authenticator.identify_bearer(credential.strip())
            if caller.role is Role.CLIENT:
                needed = Access.READ_ONE  # It was issued for this very owner, or is refused.
            admit(caller, needed, owner_kind=owner.kind.value, owner_id=owner.id)
        except ForbiddenError:
            return Admission.REFUSED, Visitor()
        except AccessError:
            return Admission.UNKNOWN, Visitor()
        return Admission.ADMITTED, Visitor(caller.actor, is_member=True)

    def _comes_from_elsewhere(
        self, address: PreviewAddress, kind: RequestKind, headers: Mapping[str, str]
    ) -> bool:
        """Return whether a page of another origin asks with this visitor's pass.

        Browsers send the pass with such requests, too, at least between previews of one domain. A
        page may be opened from anywhere; all else is for pages of the same project.
        """
        site = headers.get("sec-fetch-site")
        origin = headers.get("origin")
        if kind.is_page or site in {"same-origin", "none"}:
            return False
        if origin is None:
            return site is not None
        asking = self._urls.parse(urlsplit(origin).netloc)
        own = urlsplit(f"//{headers.get('host', '')}").netloc == urlsplit(origin).netloc
        return not own and (asking is None or asking.name != address.name)


def _suffices(held: PreviewPass, access: PreviewAccess) -> bool:
    return held.right is not PassRight.READ or access is not PreviewAccess.PRIVATE
