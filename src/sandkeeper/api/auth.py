"""Who calls, and what each route asks of them.

Four kinds of caller. The *operator* may do everything; an *editor* may operate all sandboxes, or
those of the projects with one prefix; a *viewer* may read everything; a *client* is a browser with
a short-lived token that is good for one owner. The holders of named keys and the people who signed
in have names, which the logs show. Keys and tokens come as
``Authorization: Bearer``, a login to the dashboard as a cookie that no script can read, and a live
stream, for which browsers send no headers, with a *stream token* that is good once, for 30 seconds.
The holder of a key may ask for a *login code*, which is exchanged once for a login: it opens the
dashboard from a terminal, in the fragment of a link, which browsers do not send to any server. Keys
are never read from a URL and never logged. Logins and client tokens have ids; a revoked one is
refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie
from typing import Any

import jwt

from sandkeeper.domain.access import ApiKey, Right, Scope
from sandkeeper.domain.errors import ForbiddenError, UnauthenticatedError
from sandkeeper.hosting.keeper_keys import load_operator_key
from sandkeeper.settings import Settings

COOKIE = "sandkeeper_login"
HOST_COOKIE = f"__Host-{COOKIE}"
"""The same where TLS is: browsers take it only from this very host, secure and for all paths."""
SIGN_IN_COOKIE = "sandkeeper_sign_in"
HOST_SIGN_IN_COOKIE = f"__Host-{SIGN_IN_COOKIE}"
"""What ties the answer of an identity provider to the browser in which the sign-in began."""
SIGN_IN_TTL_S = 600
STREAM_TOKEN_TTL_S = 30
LOGIN_CODE_TTL_S = 600
ALGORITHM = "HS256"
# Verified tokens that are remembered. More costs memory, fewer costs 30 µs for a forgotten one.
REMEMBERED_MAX = 10_000


class Role(StrEnum):
    """What a caller is."""

    OPERATOR = "operator"
    EDITOR = "editor"
    VIEWER = "viewer"
    CLIENT = "client"


class Access(StrEnum):
    """What a route asks of its caller: every route has exactly one of these."""

    PUBLIC = "public"
    """Anyone: the answer holds nothing of any owner."""
    SIGNED = "signed"
    """A caller who signed the body with the webhook's secret."""
    CALLER = "caller"
    """Any authenticated caller."""
    READ_ONE = "read_one"
    """A viewer, an editor, an operator, or a client of this very owner."""
    WRITE_ONE = "write_one"
    """An operator, an editor, or a client of this very owner."""
    OPERATE_ONE = "operate_one"
    """An operator, or an editor whose prefix this owner has."""
    OPERATE_SOME = "operate_some"
    """An operator or an editor: the body names the owner, and the handler checks the prefix."""
    READ_ALL = "read_all"
    """A viewer, an operator, or an editor of all projects."""
    OPERATE = "operate"
    """An operator, or an editor of all projects."""
    MONITOR = "monitor"
    """The same as READ_ALL; anyone on loopback by a name of this machine, or by a setting."""
    ADMIN = "admin"
    """An operator."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request; a client names the owner that its token is good for.

    `name` is the key or the person, `prefix` the limit of an editor, `key_id` the named key with
    which everything began: when it is over, so are the logins and tokens that came from it.
    """

    role: Role
    owner_kind: str | None = None
    owner_id: str | None = None
    by_cookie: bool = False
    token_id: str | None = field(default=None, compare=False)
    """Of the login or client token that was sent, or that the stream token was issued for."""
    expires_at: int | None = field(default=None, compare=False)
    """When that stops being good; the operator's own key does not."""
    name: str | None = None
    prefix: str | None = None
    key_id: str | None = field(default=None, compare=False)

    @property
    def actor(self) -> str:
        """Return how the audit trail names this caller."""
        if self.role is Role.CLIENT:
            return f"client:{self.owner_kind}:{self.owner_id}"
        return self.name or self.role.value

    @property
    def credential_ids(self) -> tuple[str, ...]:
        """Return the ids of all that must not be revoked for this caller to be admitted."""
        return tuple(one for one in (self.token_id, self.key_id) if one is not None)


RIGHT_ROLES = {
    Right.READ: Role.VIEWER,
    Right.OPERATE: Role.EDITOR,
    Right.ADMIN: Role.OPERATOR,
}


def make_named_caller(name: str, scope: Scope) -> Caller:
    """Return the caller with this name and these rights."""
    return Caller(RIGHT_ROLES[scope.right], name=name, prefix=scope.prefix)


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A token and the moment at which it stops being good, in seconds since the epoch."""

    token: str
    expires_at: int
    id: str


class Authenticator:
    """Identifies callers, and issues tokens, logins and login codes.

    Tokens are signed with keys derived from the operator's, so replicas that share it accept each
    other's tokens. While it is rotated, the other operator keys are accepted with what they signed.
    """

    def __init__(
        self,
        *,
        operator_key: str,
        other_operator_keys: Iterable[str] = (),
        viewer_keys: Iterable[str] = (),
        is_revoked: Callable[[str], bool] = lambda _: False,
        find_key: Callable[[str], ApiKey | None] = lambda _: None,
        client_ttl_max_s: int = 86_400,
    ) -> None:
        operator_keys = [operator_key, *other_operator_keys]
        self._keys = [(key.encode(), Role.OPERATOR) for key in operator_keys]
        self._keys += [(key.encode(), Role.VIEWER) for key in viewer_keys]
        self._is_revoked = is_revoked
        self._find_key = find_key
        self._client_ttl_max_s = client_ttl_max_s
        self._remembered: dict[bytes, tuple[Caller, int]] = {}
        self._spent: dict[str, int] = {}
        self._signing = {
            use: [
                hmac.digest(key.encode(), f"sandkeeper {use}".encode(), "sha256")
                for key in operator_keys
            ]
            for use in ("client", "login", "login-code", "sign-in", "stream")
        }

    def identify(self, headers: Mapping[str, str], *, stream_token: str | None = None) -> Caller:
        """Return the caller, or raise UnauthenticatedError that says what to send."""
        authorization = headers.get("authorization")
        if authorization is not None:
            scheme, _, credential = authorization.partition(" ")
            if scheme.lower() != "bearer" or not credential:
                raise UnauthenticatedError("The Authorization header is not a bearer key.")
            return self.identify_bearer(credential.strip())
        if stream_token is not None:
            return self._redeem_stream_token(stream_token)
        caller = self.identify_login(headers)
        if caller is not None:
            return caller
        raise UnauthenticatedError("This route needs a key, and none was sent.")

    def identify_login(self, headers: Mapping[str, str]) -> Caller | None:
        """Return the caller of the login cookie; None if there is no cookie."""
        login = _cookie(headers.get("cookie"))
        if login is None:
            return None
        claims = self._decode("login", login)
        return self._hold(replace(_from_claims(claims), by_cookie=True), claims)

    def identify_bearer(self, credential: str) -> Caller:
        """Return the holder of a key or of a client token."""
        given = credential.encode()
        role: Role | None = None
        for key, of in self._keys:  # Compare every key, so that timing reveals nothing.
            if hmac.compare_digest(key, given):
                role = of
        if role is not None:
            return Caller(role)
        named = self._find_key(credential)
        if named is not None:
            return _from_key(named)
        digest = hashlib.sha256(given).digest()
        known = self._remembered.get(digest)
        if known is not None and known[1] > time.time():
            for one in known[0].credential_ids:
                self._refuse_revoked(one)
            return known[0]
        claims = self._decode("client", credential)
        if claims["exp"] - claims["iat"] > self._client_ttl_max_s:
            raise UnauthenticatedError("The token lives longer than the settings allow.")
        client = Caller(Role.CLIENT, claims["kind"], claims["sub"], key_id=claims.get("key"))
        caller = self._hold(client, claims)
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[digest] = (caller, int(claims["exp"]))
        return caller

    def issue_client_token(
        self, *, kind: str, owner_id: str, ttl_s: int, key_id: str | None = None
    ) -> SignedToken:
        """Issue a token for one owner; it ends with the named key that asked for it."""
        return self._encode("client", {"sub": owner_id, "kind": kind, "key": key_id}, ttl_s)

    def issue_login(
        self, caller: Caller, *, ttl_s: int, token_id: str | None = None
    ) -> SignedToken:
        """Issue a login with the rights of its caller; one for a login code has the code's id."""
        return self._encode("login", _to_claims(caller), ttl_s, token_id)

    def issue_login_code(self, caller: Caller) -> SignedToken:
        """Issue a code for one login with the rights of its caller."""
        return self._encode("login-code", _to_claims(caller) | _parent(caller), LOGIN_CODE_TTL_S)

    def redeem_login_code(self, token: str) -> tuple[Caller, str]:
        """Return the caller that the code was issued to, and its id.

        It is good once in this process; the login that is written down under its id makes that
        hold on all replicas.
        """
        claims = self._decode("login-code", token)
        self._spend(claims)
        return _from_claims(claims), claims["jti"]

    def issue_sign_in(self, facts: Mapping[str, str], *, state: str) -> SignedToken:
        """Sign what a browser keeps while its person is at the identity provider."""
        return self._encode("sign-in", {**facts, "sub": state}, SIGN_IN_TTL_S)

    def redeem_sign_in(self, token: str, *, state: str) -> dict[str, Any]:
        """Return what was signed for this state; the login under its id makes it good once."""
        claims = self._decode("sign-in", token)
        if not hmac.compare_digest(claims["sub"].encode(), state.encode()):
            raise UnauthenticatedError("This answer belongs to another sign-in: begin again.")
        return claims

    def issue_stream_token(self, caller: Caller) -> SignedToken:
        """Issue a token for one live stream, with the rights of its caller."""
        claims = _to_claims(caller) | {"kind": caller.owner_kind}
        return self._encode("stream", claims | _parent(caller), STREAM_TOKEN_TTL_S)

    def _redeem_stream_token(self, token: str) -> Caller:
        """Use up a stream token. It is good once per process, and for half a minute everywhere."""
        claims = self._decode("stream", token)
        self._spend(claims)
        caller = _from_claims(claims)
        if caller.role is Role.CLIENT:
            caller = replace(caller, owner_kind=claims["kind"], owner_id=claims["sub"])
        if claims.get("parent") is None:
            return caller
        return replace(caller, token_id=claims["parent"], expires_at=claims["parent_exp"])

    def _spend(self, claims: Mapping[str, Any]) -> None:
        """Remember that this token was used, for as long as it would be good."""
        now = int(time.time())
        self._spent = {jti: until for jti, until in self._spent.items() if until >= now}
        if claims["jti"] in self._spent:
            raise UnauthenticatedError("This code or token was used before: ask for a new one.")
        self._spent[claims["jti"]] = int(claims["exp"])

    def _hold(self, caller: Caller, claims: Mapping[str, Any]) -> Caller:
        """Return the caller as the holder of this login or token."""
        return replace(caller, token_id=claims["jti"], expires_at=int(claims["exp"]))

    def _refuse_revoked(self, token_id: str | None) -> None:
        if token_id is not None and self._is_revoked(token_id):
            raise UnauthenticatedError("The login or token was revoked: ask for a new one.")

    def _encode(
        self, use: str, claims: Mapping[str, Any], ttl_s: int, token_id: str | None = None
    ) -> SignedToken:
        now = int(time.time())
        payload = {
            **claims,
            "jti": token_id or secrets.token_hex(12),
            "aud": f"sandkeeper-{use}",
            "iat": now,
            "exp": now + ttl_s,
        }
        token = jwt.encode(payload, self._signing[use][0], ALGORITHM)
        return SignedToken(token, now + ttl_s, payload["jti"])

    def _decode(self, use: str, token: str) -> dict[str, Any]:
        try:
            claims = self._verify(use, token)
        except jwt.ExpiredSignatureError:
            raise UnauthenticatedError("The token has expired: ask for a new one.") from None
        except jwt.InvalidTokenError:
            raise UnauthenticatedError("The key or token is not one of ours.") from None
        self._refuse_revoked(claims["jti"])
        self._refuse_revoked(claims.get("parent"))
        self._refuse_revoked(claims.get("key"))
        return claims

    def _verify(self, use: str, token: str) -> dict[str, Any]:
        """Return the claims of a token that one of the operator's keys signed."""
        *others, last = self._signing[use]
        for key in others:
            with contextlib.suppress(jwt.InvalidSignatureError):
                return _verify_with(key, use, token)
        return _verify_with(last, use, token)


def _verify_with(key: bytes, use: str, token: str) -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(
        token,
        key,
        algorithms=[ALGORITHM],
        audience=f"sandkeeper-{use}",
        options={"require": ["exp", "iat", "jti", "sub"]},
    )
    return claims


ANY_CALLER = frozenset(Role)
ROLE_ACCESS = {
    Access.PUBLIC: ANY_CALLER,
    Access.SIGNED: ANY_CALLER,
    Access.CALLER: ANY_CALLER,
    Access.READ_ONE: frozenset({Role.OPERATOR, Role.EDITOR, Role.VIEWER}),
    Access.WRITE_ONE: frozenset({Role.OPERATOR, Role.EDITOR}),
    Access.OPERATE_ONE: frozenset({Role.OPERATOR, Role.EDITOR}),
    Access.OPERATE_SOME: frozenset({Role.OPERATOR, Role.EDITOR}),
    Access.READ_ALL: frozenset({Role.OPERATOR, Role.EDITOR, Role.VIEWER}),
    Access.OPERATE: frozenset({Role.OPERATOR, Role.EDITOR}),
    Access.MONITOR: frozenset({Role.OPERATOR, Role.EDITOR, Role.VIEWER}),
    Access.ADMIN: frozenset({Role.OPERATOR}),
}
"""Roles each access admits for any owner; READ_ONE and WRITE_ONE also admit its own clients.

An editor with a prefix is admitted to the three of one owner, and to CALLER and OPERATE_SOME.
"""
FOR_ANY_PREFIX = frozenset({Access.CALLER, Access.OPERATE_SOME})
OF_ONE_OWNER = frozenset({Access.READ_ONE, Access.WRITE_ONE, Access.OPERATE_ONE})


def admit(
    caller: Caller, access: Access, *, owner_kind: str = "project", owner_id: str | None = None
) -> None:
    """Let the caller pass, or raise ForbiddenError."""
    if caller.role in ROLE_ACCESS[access]:
        if caller.prefix is not None and access not in FOR_ANY_PREFIX:
            _admit_prefix(caller.prefix, access, owner_kind, owner_id)
        return
    if caller.role is Role.EDITOR:
        raise ForbiddenError("This needs a key with the scope admin.")
    if caller.role is Role.VIEWER:
        raise ForbiddenError("A viewer may only read.")
    if access not in {Access.READ_ONE, Access.WRITE_ONE}:
        raise ForbiddenError("A client token is good for its own sandbox only.")
    if (caller.owner_kind, caller.owner_id) != (owner_kind, owner_id):
        raise ForbiddenError("This token is good for another sandbox.")


def _admit_prefix(prefix: str, access: Access, owner_kind: str, owner_id: str | None) -> None:
    if access not in OF_ONE_OWNER:
        raise ForbiddenError(f"This key is good for projects that begin with {prefix!r} only.")
    if owner_kind != "project" or owner_id is None or not owner_id.startswith(prefix):
        raise ForbiddenError(f"This key is good for projects that begin with {prefix!r} only.")


def refuse_foreign_pages(caller: Caller, method: str, headers: Mapping[str, str]) -> None:
    """Refuse a change with a cookie from another site: browsers send cookies with those, too."""
    if not caller.by_cookie or method in {"GET", "HEAD", "OPTIONS"}:
        return
    origin = headers.get("origin")
    if origin is not None:
        _, _, host = origin.partition("://")
        if host and host == headers.get("host"):
            return
    elif headers.get("sec-fetch-site") in {"same-origin", "none"}:
        return
    raise ForbiddenError("A login is good only for requests from the dashboard's own pages.")


def _from_key(key: ApiKey) -> Caller:
    caller = make_named_caller(f"key:{key.name}", key.scope)
    expires_at = int(key.expires_at.timestamp()) if key.expires_at is not None else None
    return replace(caller, key_id=key.id, expires_at=expires_at)


def _to_claims(caller: Caller) -> dict[str, Any]:
    """Return what a login, a code or a stream token says about the caller."""
    return {
        "sub": caller.owner_id or caller.name or caller.role.value,
        "role": caller.role.value,
        "name": caller.name,
        "prefix": caller.prefix,
        "key": caller.key_id,
    }


def _from_claims(claims: Mapping[str, Any]) -> Caller:
    return Caller(
        Role(claims["role"]),
        name=claims.get("name"),
        prefix=claims.get("prefix"),
        key_id=claims.get("key"),
    )


def _parent(caller: Caller) -> dict[str, str | int | None]:
    """Return the claims that tie a token to the login or token of its caller."""
    return {"parent": caller.token_id, "parent_exp": caller.expires_at}


def _cookie(header: str | None) -> str | None:
    """Return the login; prefer the cookie that only this host can have set."""
    if not header or COOKIE not in header:
        return None
    try:
        found = SimpleCookie(header)
    except CookieError:
        return None
    morsel = found.get(HOST_COOKIE) or found.get(COOKIE)
    return morsel.value if morsel is not None else None


def make_authenticator(
    settings: Settings,
    *,
    is_revoked: Callable[[str], bool],
    find_key: Callable[[str], ApiKey | None],
) -> Authenticator:
    """Return the authenticator for the configured keys; the operator's key is made if missing."""
    return Authenticator(
        operator_key=load_operator_key(settings),
        other_operator_keys=[other.get_secret_value() for other in settings.other_operator_keys],
        viewer_keys=[viewer.get_secret_value() for viewer in settings.viewer_keys],
        is_revoked=is_revoked,
        find_key=find_key,
        client_ttl_max_s=settings.client_token_ttl_max_s,
    )
