"""The routes of pages and static files.

| route | content | cached |
|---|---|---|
| `/`, `/sandboxes/{id}`, `/jobs`, … | the dashboard's single page | never |
| `/static/{version}/{path}` | a file of that version | forever |
| `/embed/{path}` | a redirect to the current version, for pages of other applications | never |

The pages contain no data and need no key: their data comes from the API, which does. A page opened
on a shared host name, such as 127.0.0.1, redirects to the dashboard's own host name, so that the
login cookie is not sent to other servers on the machine.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from sandkeeper.common.dashboard_host import get_dashboard_url, is_shared_name
from sandkeeper.web.assets import Assets

# Previews have other origins, hence frame-src; everything else is our own. Styles are files and
# constructed sheets, scripts are files, so inline code is not allowed.
PAGE_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; frame-src http: https:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'self'"
)

DASHBOARD_PAGES = (
    "/",
    "/sandboxes/{rest:path}",
    "/jobs",
    "/jobs/{rest:path}",
    "/charts",
    "/costs",
    "/health",
    "/keys",
    "/pools",
    "/sessions",
    "/settings",
    "/webhooks",
    "/drift",
    "/audit",
    "/previews/enter",
    "/login",
)

CACHE_FOREVER = "public, max-age=31536000, immutable"


def web_routes(assets: Assets | None = None, *, has_own_host: bool = False) -> list[Route]:
    """Return the routes of pages and files; they need no key and contain no data."""
    files = assets if assets is not None else Assets()

    async def page(request: Request) -> Response:
        if has_own_host and is_shared_name(request.headers.get("host", "")):
            # The browser keeps the fragment, which may contain a login code, across the redirect.
            target = get_dashboard_url(str(request.url))
            return RedirectResponse(target, status_code=307, headers={"Cache-Control": "no-store"})
        headers = {
            "Cache-Control": "no-store",
            "Content-Security-Policy": PAGE_CSP,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        body = files.render_page("dashboard/index.html")
        return Response(body, media_type="text/html; charset=utf-8", headers=headers)

    async def static(request: Request) -> Response:
        return _send(files, request, cached=request.path_params["version"] == files.version)

    async def embed(request: Request) -> Response:
        path = str(request.path_params["path"])
        if files.find(path) is None:
            raise HTTPException(404)
        prefix = request.scope.get("root_path", "")
        return RedirectResponse(
            f"{prefix}/static/{files.version}/{path}",
            status_code=307,
            headers={"Cache-Control": "no-store", "Access-Control-Allow-Origin": "*"},
        )

    return [
        *(Route(path, page, methods=["GET"], include_in_schema=False) for path in DASHBOARD_PAGES),
        Route("/static/{version}/{path:path}", static, methods=["GET"], include_in_schema=False),
        Route("/embed/{path:path}", embed, methods=["GET"], include_in_schema=False),
    ]


def _send(files: Assets, request: Request, *, cached: bool) -> Response:
    asset = files.find(str(request.path_params["path"]))
    if asset is None:
        raise HTTPException(404)
    headers = {
        # Another version comes from an old page during an upgrade: serve it, but do not cache it.
        "Cache-Control": CACHE_FOREVER if cached else "no-store",
        "Content-Type": asset.media_type,
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
        # Other applications embed the pane as a module, and browsers fetch modules with CORS.
        "Access-Control-Allow-Origin": "*",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.zipped, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.body, headers=headers)
