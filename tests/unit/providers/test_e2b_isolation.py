"""E2B's cloud does not tell what isolates a sandbox, and is not asked again and again."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sandkeeper.providers.e2b.rest import E2BRest
from support.scripted_api import served


async def test_a_provider_that_does_not_tell_is_asked_once() -> None:
    asked: list[str] = []

    async def detail(request: Request) -> Response:
        asked.append(request.url.path)
        return JSONResponse({"sandboxID": "i1", "envdVersion": "0.6.13"})

    async with served(Starlette(routes=[Route("/sandboxes/{id}", detail)])) as url:
        rest = E2BRest(api_url=url, api_key="e2b_00", request_timeout_s=10)
        told = [await rest.read_isolation(f"i{number}") for number in range(3)]
        assert [isolation for isolation, _detail in told] == ["provider"] * 3
        await rest.close()
    assert asked == ["/sandboxes/i0"]


async def test_a_failed_question_fails_no_creation() -> None:
    async def broken(_request: Request) -> Response:
        return Response(status_code=503)

    async with served(Starlette(routes=[Route("/sandboxes/{id}", broken)])) as url:
        rest = E2BRest(api_url=url, api_key="e2b_00", request_timeout_s=10)
        assert await rest.read_isolation("i1") == (None, None)
    assert await rest.read_isolation("i1") == (None, None)
    await rest.close()
