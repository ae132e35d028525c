"""The CLI's connection to a running keeper, and the exit codes of its errors."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Annotated, Any, Final
from urllib.parse import quote

import httpx
import typer

from sandkeeper.api.wire_errors import read_detail
from sandkeeper.common.dashboard_host import get_dashboard_url
from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.hosting.discovery import find_key, resolve_url


class Exit(IntEnum):
    """Exit codes, the same for every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    WRONG_STATE = 4
    AUTH = 5
    PROVIDER = 6
    PARTIAL = 7
    FINDINGS = 8
    TIMEOUT = 124
    INTERRUPTED = 130


UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="SANDKEEPER_URL", help="URL of the keeper."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the new state is reached.")]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", help="Maximum time to wait, such as 90s, 15m or 2h.")
]


def complete_projects(incomplete: str) -> list[str]:
    """Return projects that begin like this, for the shell; none if no keeper answers at once."""
    try:
        connection = KeeperConnection()
        query = {"search": incomplete, "limit": 50, "fields": "compact"}
        params = {name: str(value) for name, value in query.items() if value}
        answer = connection.http.get("/api/sandboxes", params=params, timeout=1)
        names = [str(item["project"]) for item in answer.raise_for_status().json()["items"]]
    except (httpx.HTTPError, typer.Exit):
        return []
    return [name for name in names if name.startswith(incomplete)]


ProjectArgument = Annotated[
    str,
    typer.Argument(
        help="Project, sandbox id, or a unique prefix.", autocompletion=complete_projects
    ),
]


def fail(code: Exit, message: str, hint: str = "", *, error: str = "") -> typer.Exit:
    """Report an error on stderr; return the exit for the caller to raise.

    `error` is the code that the API gave. With `--json` the report is a line of JSON.
    """
    report_error(code, message, hint, error=error)
    return typer.Exit(int(code))


def report_error(code: Exit, message: str, hint: str = "", *, error: str = "") -> None:
    """Print an error and a hint to stderr, as text or, with `--json`, as a line of JSON."""
    if wants_json(sys.argv[1:]):
        problem = {
            "code": error or code.name.lower(),
            "message": message,
            "hint": hint,
            "exitCode": int(code),
        }
        sys.stderr.write(json.dumps({"error": problem}, ensure_ascii=False) + "\n")
        return
    sys.stderr.write(f"{message}\n")
    if hint:
        sys.stderr.write(f"  {hint}\n")


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether `--json` is among a command's own arguments."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


SUGGESTED_FROM: Final = 500
"""Names that are compared with one that does not exist; more would make its error slow."""


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A name that does not stand for one sandbox, and why."""

    exit: Exit
    message: str
    hint: str = ""


class KeeperConnection:
    """The keeper's HTTP API with the operator's key."""

    def __init__(self, url: str | None = None) -> None:
        try:
            self.url, key = resolve_url(url), find_key(None)
        except InvalidSettingsError as error:
            raise fail(Exit.USAGE, error.message) from None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def get(self, path: str, **query: object) -> Any:
        """Return the response's JSON; exit with the matching code on an error."""
        return self.request("GET", path, query=query)

    def iter_pages(
        self, path: str, *, page_size: int = 200, **query: object
    ) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list, following `nextCursor`."""
        cursor: str | None = None
        while True:
            page = self.get(path, limit=page_size, cursor=cursor, **query)
            yield page
            cursor = page["nextCursor"]
            if cursor is None:
                return

    def iter_items(
        self, path: str, *, page_size: int = 200, **query: object
    ) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, reading its pages as needed."""
        for page in self.iter_pages(path, page_size=page_size, **query):
            yield from page["items"]

    def post(self, path: str, body: object = None) -> Any:
        return self.request("POST", path, body=body)

    def request(
        self, method: str, path: str, *, body: object = None, query: dict[str, object] | None = None
    ) -> Any:
        response = self.send(method, path, body=body, query=query)
        if response.is_success:
            return response.json() if response.content else None
        raise self.make_exit(response)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: dict[str, object] | None = None,
        content: Iterable[bytes] | None = None,
    ) -> httpx.Response:
        """Return the response, whatever its status; exit if there is none."""
        params = {
            name: str(value) for name, value in (query or {}).items() if value not in (None, "")
        }
        try:
            return self.http.request(method, path, json=body, content=content, params=params)
        except httpx.TimeoutException:
            raise fail(Exit.TIMEOUT, f"{self.url} did not respond in time.") from None
        except httpx.HTTPError as error:
            raise fail(
                Exit.FAILURE,
                f"No keeper responds at {self.url} ({error}).",
                "Start it with `sandkeeper up`, or pass --url.",
            ) from None

    def download(self, path: str, **query: object) -> Iterator[bytes]:
        """Yield the response's bytes as they arrive; exit on an error."""
        params = {name: str(value) for name, value in query.items() if value not in (None, "")}
        try:
            with self.http.stream("GET", path, params=params) as response:
                if not response.is_success:
                    response.read()
                    raise self.make_exit(response)
                yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise fail(Exit.FAILURE, f"The download from {self.url} broke off: {error}") from None

    def is_up(self) -> bool:
        """Return whether a keeper responds."""
        try:
            return self.http.get("/healthz", timeout=3).is_success
        except httpx.HTTPError:
            return False

    def make_exit(self, response: httpx.Response) -> typer.Exit:
        """Print the error of a response to stderr and return its exit."""
        try:
            problem = response.json()
        except ValueError:
            problem = {}
        detail = read_detail(problem.get("detail") or f"HTTP {response.status_code}")
        return fail(
            exit_code(response.status_code, problem),
            detail,
            problem.get("hint") or "",
            error=str(problem.get("code") or ""),
        )

    def resolve(self, text: str) -> str:
        """Return the project of the one sandbox that this name, id or prefix matches."""
        found = self._find(text)
        if isinstance(found, str):
            return found
        raise fail(found.exit, found.message, found.hint)

    def resolve_all(self, texts: Sequence[str]) -> list[str]:
        """Return the projects of all these names, each once; exit before anything is done."""
        found = [self._find(text) for text in texts]
        wrong = [one for one in found if not isinstance(one, str)]
        if wrong:
            message = " ".join(one.message for one in wrong)
            done = " Nothing was done." if len(texts) > 1 else ""
            raise fail(wrong[0].exit, f"{message}{done}", wrong[0].hint)
        return list(dict.fromkeys(one for one in found if isinstance(one, str)))

    def _find(self, text: str) -> str | Unresolved:
        response = self.send("GET", f"/api/sandboxes/{quote(text, safe='')}/status")
        if response.is_success:
            return text
        if response.status_code not in {404, 422}:
            raise self.make_exit(response)
        items = self.get("/api/sandboxes", search=text, limit=50, fields="compact")["items"]
        found = [
            str(item["project"])
            for item in items
            if item["project"].startswith(text) or item["id"].startswith(text)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(found[:8])
            return Unresolved(Exit.USAGE, f"{text!r} matches several sandboxes: {names}.")
        page = self.get("/api/sandboxes", limit=SUGGESTED_FROM, fields="compact")
        near = get_close_matches(text, [str(item["project"]) for item in page["items"]])
        hint = f"Did you mean {' or '.join(near)}?" if near else "`sandkeeper ls` lists all."
        return Unresolved(Exit.NOT_FOUND, f"No sandbox matches {text!r}.", hint)

    def path(self, text: str, verb: str = "") -> str:
        """Return the URL path of one sandbox."""
        project = quote(self.resolve(text), safe="")
        return f"/api/sandboxes/{project}{'/' + verb if verb else ''}"

    def follow(self, path: str, *, after: str | None = None) -> Iterator[tuple[str, Any]]:
        """Yield events of a live stream as (name, JSON) without end; reconnect a lost stream."""
        last = after
        while True:
            headers = {"Last-Event-ID": last} if last else {}
            try:
                with self.http.stream("GET", path, headers=headers, timeout=None) as response:
                    if response.status_code != 200:
                        response.read()
                        raise self.make_exit(response)
                    for seq, name, data in _parse_events(response.iter_lines()):
                        last = seq or last
                        yield name, json.loads(data)
            except httpx.HTTPError as error:
                sys.stderr.write(f"The stream was interrupted ({error}); reconnecting.\n")
            time.sleep(1)

    def wait_for(self, text: str, states: set[str], *, within_s: float) -> dict[str, Any]:
        """Poll until the state is one of `states`; return the status."""
        path = self.path(text, "status")
        deadline = time.monotonic() + within_s
        while True:
            status: dict[str, Any] = self.get(path)
            if status["status"] in states:
                return status
            if time.monotonic() > deadline:
                raise fail(Exit.TIMEOUT, f"{text} is still {status['status']}.")
            time.sleep(0.2)


def make_sign_in_url(url: str, token: str) -> str:
    """Return the dashboard's URL with a login code in the fragment, which browsers never send."""
    return f"{get_dashboard_url(url)}/#code={token}"


def exit_code(status: int, problem: dict[str, Any]) -> Exit:
    """Return the exit code for an error response."""
    code = str(problem.get("code", ""))
    if code.startswith(("provider", "instance_gone")):
        return Exit.PROVIDER
    return {
        401: Exit.AUTH,
        403: Exit.AUTH,
        404: Exit.NOT_FOUND,
        409: Exit.WRONG_STATE,
        422: Exit.USAGE,
        400: Exit.USAGE,
        504: Exit.TIMEOUT,
    }.get(status, Exit.FAILURE)


def _parse_events(lines: Iterator[str]) -> Iterator[tuple[str | None, str, str]]:
    seq, name = None, "message"
    data: list[str] = []
    for line in lines:
        if not line:
            if data:
                yield seq, name, "\n".join(data)
            name, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            seq = value
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)


UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Parse `90`, `90s`, `15m`, `2h` or `1d` to seconds; exit on anything else."""
    stripped = text.strip().lower()
    for unit in sorted(UNITS, key=len, reverse=True):
        if stripped.endswith(unit):
            number = stripped[: -len(unit)]
            break
    else:
        unit, number = "s", stripped
    try:
        value = float(number) * UNITS[unit]
    except ValueError:
        raise fail(Exit.USAGE, f"{text!r} is not a duration.", "Write 90s, 15m or 2h.") from None
    if value <= 0:
        raise fail(Exit.USAGE, f"{text!r} is not a positive duration.")
    return value
