"""The pages of a sign-in with an identity provider: the way there, and the way back.

They are addresses for browsers, not part of the API, and exist only where a provider is set. A
cookie ties the way back to the browser that went: it is signed, holds state, nonce and PKCE
verifier, and is good once.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from html import escape

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sandkeeper.api.auth import (
    HOST_SIGN_IN_COOKIE,
    SIGN_IN_COOKIE,
    SIGN_IN_TTL_S,
    make_named_caller,
)
from sandkeeper.api.deps import ApiContext, get_address
from sandkeeper.api.errors import log_failure, render_error
from sandkeeper.api.handlers.login import (
    SIGN_IN_PATH,
    has_tls,
    record_failed_login,
    refuse_shared_name,
    start_login,
)
from sandkeeper.domain.errors import ForbiddenError, SandkeeperError, UnauthenticatedError
from sandkeeper.services.access.identity_provider import (
    CALLBACK_PATH,
    IdentityProvider,
    SignInAttempt,
    describe_error,
)

# A page of ours, named by its path: no other host, however a browser may read it.
OWN_PAGE = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]{0,500}")
CODE_MAX = 4096
NO_STORE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
PAGE_CSP = (
    "default-src 'none'; style-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Sign in · Sandkeeper</title>
<link rel="stylesheet" href="/static/sign-in/dashboard/dashboard.css">
<body>
<main class="login"><div class="card">
<h1>You are not signed in</h1>
<p role="alert">{problem}</p>
<p>{hint}</p>
<p><a href="{back}">Back to the sign-in page</a></p>
</div></main>
"""


class SignInPages:
    """Both pages, for one provider."""

    def __init__(self, context: ApiContext, provider: IdentityProvider) -> None:
        self._context = context
        self._provider = provider

    async def begin(self, request: Request) -> Response:
        """Send the browser to the provider."""
        refuse_shared_name(self._context, request)
        if request.headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
            raise ForbiddenError("Another site sent you here: begin at the sign-in page.")
        page = request.query_params.get("next", "/")
        attempt = SignInAttempt.make()
        url = await self._provider.make_redirect(attempt)
        facts = {
            "nonce": attempt.nonce,
            "verifier": attempt.verifier,
            "next": page if OWN_PAGE.fullmatch(page) else "/",
        }
        issued = self._context.authenticator.issue_sign_in(facts, state=attempt.state)
        answer = RedirectResponse(url, status_code=303, headers=NO_STORE)
        secure = has_tls(self._context, request)
        # Strict would hide it on the way back, which begins at the provider's site.
        answer.set_cookie(
            HOST_SIGN_IN_COOKIE if secure else SIGN_IN_COOKIE,
            issued.token,
            max_age=SIGN_IN_TTL_S,
            httponly=True,
            samesite="lax",
            secure=secure,
            path="/",
        )
        return answer

    async def finish(self, request: Request) -> Response:
        """Take what the provider sent back with the browser, and sign the person in."""
        refuse_shared_name(self._context, request)
        actor = "unknown"
        try:
            claims = self._redeem(request)
            code = self._find_code(request)
            attempt = SignInAttempt(claims["sub"], claims["nonce"], claims["verifier"])
            person = await self._provider.identify(code, attempt)
            actor = f"person:{person.name}"
            if person.scope is None:
                raise ForbiddenError(f"{person.name} has no role that may use this dashboard.")
            answer = RedirectResponse(claims["next"], status_code=303, headers=NO_STORE)
            await start_login(
                self._context,
                request,
                answer,
                make_named_caller(actor, person.scope),
                token_id=claims["jti"],
                issuer=self._provider.issuer,
                sub=person.subject,
            )
        except SandkeeperError as error:
            await record_failed_login(self._context, request, error, actor=actor)
            if isinstance(error, UnauthenticatedError):
                self._context.limits.count_failure(get_address(request.scope))
            raise
        return answer

    def _redeem(self, request: Request) -> dict[str, str]:
        kept = request.cookies.get(HOST_SIGN_IN_COOKIE) or request.cookies.get(SIGN_IN_COOKIE)
        if kept is None:
            raise UnauthenticatedError(
                "This sign-in did not begin in this browser at this address, or too long ago."
            )
        state = request.query_params.get("state", "")
        return self._context.authenticator.redeem_sign_in(kept, state=state)

    def _find_code(self, request: Request) -> str:
        given = request.query_params
        name = self._provider.name
        if given.get("iss", self._provider.issuer) != self._provider.issuer:
            raise UnauthenticatedError(f"Another provider than {name} answered.")
        if "error" in given:
            reason = describe_error(given["error"])
            raise UnauthenticatedError(f"{name} refused the sign-in ({reason}).")
        code = given.get("code", "")
        if not 0 < len(code) <= CODE_MAX:
            raise UnauthenticatedError(f"{name} sent no code.")
        return code


def sign_in_routes(context: ApiContext) -> list[Route]:
    """Return the two pages, or nothing if people sign in with keys only."""
    provider = context.services.identity_provider
    if provider is None:
        return []
    pages = SignInPages(context, provider)
    return [
        Route(path, _answer_with_page(page, provider), methods=["GET"], include_in_schema=False)
        for path, page in ((SIGN_IN_PATH, pages.begin), (CALLBACK_PATH, pages.finish))
    ]


def _answer_with_page(
    handle: Callable[[Request], Awaitable[Response]], provider: IdentityProvider
) -> Callable[[Request], Awaitable[Response]]:
    """Show an error as a page: a person reads it. The sign-in is over, so its cookie goes."""

    async def endpoint(request: Request) -> Response:
        try:
            answer = await handle(request)
        except SandkeeperError as error:
            answer = _render_page(error, request, provider)
        if request.url.path == CALLBACK_PATH:
            for name in {SIGN_IN_COOKIE, HOST_SIGN_IN_COOKIE} & request.cookies.keys():
                secure = name == HOST_SIGN_IN_COOKIE
                answer.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=secure)
        return answer

    return endpoint


def _render_page(error: SandkeeperError, request: Request, provider: IdentityProvider) -> Response:
    rendered = render_error(error, str(request.state.request_id))
    log_failure(error, rendered, request.scope)
    hint = error.hint if error.retryable else "Begin again, or sign in with a key."
    body = PAGE.format(
        problem=escape(error.message), hint=escape(hint), back=escape(provider.redirect_base + "/")
    )
    kept = {name: rendered.headers[name] for name in ("Retry-After",) if name in rendered.headers}
    headers = {**NO_STORE, **kept, "Content-Security-Policy": PAGE_CSP}
    return Response(body, rendered.status, media_type="text/html; charset=utf-8", headers=headers)
