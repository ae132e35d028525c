"""`Idempotency-Key`: a request that is sent twice is done once.

The same key with the same body gets the stored answer; with another body it is refused; while the
first is under way it is asked to wait. An answer that says "try again" is not kept, so that trying
again does something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated

from fastapi import Header, Request, Response
from pydantic import BaseModel

from sandkeeper.api.deps import ApiContext
from sandkeeper.api.responses import reply_bytes

IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$"),
]
# A first request that was cut off in a living process holds its key for so long.
HELD = timedelta(minutes=5)


async def once(
    request: Request,
    context: ApiContext,
    key: str | None,
    body: BaseModel | None,
    perform: Callable[[], Awaitable[Response]],
) -> Response:
    """Perform the request, or give the answer that its key has already."""
    if key is None:
        return await perform()
    answers = context.deps.store.idempotency_keys
    scope = f"{request.state.caller.actor} {request.method} {request.url.path}"
    text = body.model_dump_json() if body is not None else ""
    now = context.deps.clock()
    known = await answers.begin(
        scope=scope,
        key=key,
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
        holder=context.deps.replica,
        now=now,
        held_until=now + HELD,
    )
    if known is not None:
        return reply_bytes(
            known.body.encode(), status=known.status, headers={"Idempotency-Replayed": "true"}
        )
    try:
        answer = await perform()
    except BaseException:
        await answers.abandon(scope=scope, key=key)
        raise
    await answers.finish(
        scope=scope, key=key, status=answer.status_code, body=bytes(answer.body).decode()
    )
    return answer
