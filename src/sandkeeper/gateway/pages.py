"""What the gateway answers itself: a page for people, JSON for programs, an icon for a tab.

The pages load nothing from elsewhere, and run one script of ours. A host application may give a
template of its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Final

import orjson

from sandkeeper.domain.gateway.requests import RequestKind
from sandkeeper.domain.gateway.visits import RETRY_AFTER_S, STATUS, PreviewProblem
from sandkeeper.domain.texts.previews import PROBLEMS
from sandkeeper.relay.asgi import Fields, Scope, Send

EVENTS_PATH: Final = "/.sandkeeper/events"
ICON: Final = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">'
    b'<circle cx="8" cy="8" r="6" fill="#d0982b"/></svg>'
)
STYLE: Final = """:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{margin:12vh auto 0;max-width:34rem;padding:0 1rem}
h1{font-size:1.4rem}.quiet{opacity:.7}ol{padding-left:1.2rem}li{opacity:.5}li.now{opacity:1;
font-weight:600}li.done{opacity:.8}li.done::after{content:" ✓"}pre{overflow:auto;padding:.7rem;
border:1px solid #8886;border-radius:6px;font-size:.85rem}a.button{display:inline-block;
padding:.4rem 1rem;border:1px solid #8888;border-radius:6px;color:inherit;text-decoration:none}"""
SCRIPT: Final = """const steps=document.getElementById("steps"),say=document.getElementById("say");
const began=Date.now();
const events=new EventSource("/.sandkeeper/events");
events.onmessage=(event)=>{const at=JSON.parse(event.data);
if(at.ready)return events.close(),location.reload();
if(at.failed){events.close();say.textContent=at.failed;steps.replaceChildren();
const again=document.createElement("a");again.className="button";again.href=location.href;
again.textContent="Try again";say.after(again);return}
steps.replaceChildren(...at.steps.map((one)=>{const li=document.createElement("li");
li.textContent=one.words;li.className=one.is;return li}));
const left=Math.ceil((at.usualMs-(Date.now()-began))/1000);
say.textContent=!at.usualMs?"":left>0?`Usually ready in ${left} s.`:"This takes longer than usual.";
};"""
RELOAD: Final = "setTimeout(()=>location.reload(),2000);"
PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title><style>{style}</style></head>
<body><main><h1>{title}</h1><p>{message}</p>
{details}</main>{script}</body></html>
"""


@dataclass(frozen=True, slots=True)
class Details:
    """What a page adds to its words, if it is known."""

    name: str = ""
    """The project's, for those who may see it."""
    sign_in_url: str = ""
    lines: Sequence[str] = ()
    """What the app printed last: for members only."""


class Pages:
    """Answer for an app that does not, in words that fit the problem and the caller."""

    def __init__(self, template: Path | None) -> None:
        self._template = template.read_text() if template is not None else None

    async def send(
        self, scope: Scope, send: Send, problem: PreviewProblem, kind: RequestKind, details: Details
    ) -> int:
        """Answer, and return the status."""
        status = 403 if kind.is_socket and STATUS[problem] < 500 else STATUS[problem]
        headers: Fields = [(b"cache-control", b"no-store"), (b"x-sandkeeper", problem.encode())]
        if problem in RETRY_AFTER_S:
            headers.append((b"retry-after", b"%d" % RETRY_AFTER_S[problem]))
        if kind.is_page:
            body, policy = self.render(problem, details)
            headers += [
                (b"content-type", b"text/html; charset=utf-8"),
                (b"content-security-policy", policy.encode()),
                (b"referrer-policy", b"no-referrer"),
            ]
        elif kind is RequestKind.ICON and status >= 500:
            status, body = 200, ICON
            headers.append((b"content-type", b"image/svg+xml"))
        else:
            body = _render_json(problem, status)
            headers.append((b"content-type", b"application/problem+json"))
        await send_answer(scope, send, status, headers, body)
        return status

    def render(self, problem: PreviewProblem, details: Details) -> tuple[bytes, str]:
        """Return a page and the policy under which it may run."""
        words = PROBLEMS[problem]
        script = _find_script(problem)
        fields = {
            "title": escape(words.title),
            "message": escape(words.message),
            "details": _render_details(problem, details),
            "script": f"<script>{script}</script>" if script else "",
            "style": STYLE,
        }
        page = self._template or PAGE
        for name, value in fields.items():
            page = page.replace("{" + name + "}", value)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy = "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; "
        if self._template is not None:
            policy = (
                "default-src https: data:; style-src 'unsafe-inline' https:; connect-src 'self'; "
            )
        policy += f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        return page.encode(), policy


def _find_script(problem: PreviewProblem) -> str:
    if problem is PreviewProblem.WAKING:
        return SCRIPT
    return RELOAD if problem in {PreviewProblem.APP_STARTING, PreviewProblem.INSTANCE_GONE} else ""


def _render_details(problem: PreviewProblem, details: Details) -> str:
    parts: list[str] = []
    if problem is PreviewProblem.WAKING:
        parts.append('<ol id="steps"></ol><p id="say" class="quiet"></p>')
    if details.sign_in_url:
        url = escape(details.sign_in_url, quote=True)
        parts.append(f'<p><a class="button" target="_top" href="{url}">Sign in</a></p>')
    if details.lines:
        parts.append(f"<pre>{escape(chr(10).join(details.lines))}</pre>")
    if details.name:
        parts.append(f'<p class="quiet">{escape(details.name)}</p>')
    return "\n".join(parts)


def _render_json(problem: PreviewProblem, status: int) -> bytes:
    words = PROBLEMS[problem]
    return orjson.dumps(
        {
            "type": f"urn:sandkeeper:preview_{problem.value}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": words.message,
            "code": f"preview_{problem.value}",
            "retryable": problem in RETRY_AFTER_S,
            "hint": words.hint,
        }
    )


async def send_answer(
    scope: Scope, send: Send, status: int, headers: Fields, body: bytes = b""
) -> None:
    """Send one whole answer of ours, also to a request for a WebSocket."""
    kind = "websocket.http" if scope["type"] == "websocket" else "http"
    sent = b"" if scope.get("method") == "HEAD" else body
    lines = [
        *headers,
        (b"content-length", b"%d" % len(body)),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": f"{kind}.response.start", "status": status, "headers": lines})
    await send({"type": f"{kind}.response.body", "body": sent})
