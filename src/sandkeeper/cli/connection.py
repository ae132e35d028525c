"""How a command reaches the running keeper, and what its answers mean as exit codes."""

from __future__ import annotations

import json
import sys
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import httpx
import typer

from sandkeeper.domain.errors import InvalidSettingsError
from sandkeeper.hosting.dashboard_host import find_dashboard
from sandkeeper.hosting.discovery import find_key, find_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
    typer.Option("--url", envvar="SANDKEEPER_URL", help="Where the keeper answers."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
TimeoutOption = Annotated[
    str, typer.Option("--timeout", help="How long to wait, as 90s, 15m or 2h.")
]
ProjectArgument = Annotated[str, typer.Argument(help="Project, id, or a unique beginning of one.")]


def fail(code: Exit, message: str, hint: str = "") -> typer.Exit:
    """Say on stderr what is the matter and what to do; the caller raises what this gives."""
    sys.stderr.write(f"{message}\n")
    if hint:
        sys.stderr.write(f"  {hint}\n")
    return typer.Exit(int(code))


class KeeperConnection:
    """The keeper's HTTP API with the operator's key."""

    def __init__(self, url: str | None = None) -> None:
        try:
            self.url, key = find_url(url), find_key(None)
        except InvalidSettingsError as error:
            raise fail(Exit.USAGE, error.message) from None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def get(self, path: str, **query: object) -> Any:
        """The answer's JSON; ends the command with the fitting exit code on an error."""
        return self.ask("GET", path, query=query)

    def post(self, path: str, body: object = None) -> Any:
        return self.ask("POST", path, body=body)

    def ask(
        self, method: str, path: str, *, body: object = None, query: dict[str, object] | None = None
    ) -> Any:
        answer = self.send(method, path, body=body, query=query)
        if answer.is_success:
            return answer.json() if answer.content else None
        raise self.explain_failure(answer)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: dict[str, object] | None = None,
        content: Iterable[bytes] | None = None,
    ) -> httpx.Response:
        """Any answer at all; no answer ends the command. `content` is sent as it is."""
        params = {
            name: str(value) for name, value in (query or {}).items() if value not in (None, "")
        }
        try:
            return self._http.request(method, path, json=body, content=content, params=params)
        except httpx.TimeoutException:
            raise fail(Exit.TIMEOUT, f"{self.url} did not answer in time.") from None
        except httpx.HTTPError as error:
            raise fail(
                Exit.FAILURE,
                f"Nobody answers at {self.url} ({error}).",
                "Start it with `sandkeeper up`, or give --url.",
            ) from None

    def download(self, path: str, **query: object) -> Iterator[bytes]:
        """The answer's bytes as they come; ends the command on an error."""
        params = {name: str(value) for name, value in query.items() if value not in (None, "")}
        try:
            with self._http.stream("GET", path, params=params) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self.explain_failure(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise fail(Exit.FAILURE, f"{self.url} broke off: {error}") from None

    def is_up(self) -> bool:
        """True when a keeper answers at all."""
        try:
            return self._http.get("/healthz", timeout=3).is_success
        except httpx.HTTPError:
            return False

    def explain_failure(self, answer: httpx.Response) -> typer.Exit:
        """The exit for an error answer, told on stderr."""
        try:
            problem = answer.json()
        except ValueError:
            problem = {}
        detail = problem.get("detail") or f"HTTP {answer.status_code}"
        return fail(exit_code(answer.status_code, problem), detail, problem.get("hint") or "")

    def resolve(self, text: str) -> str:
        """The address of the one sandbox that this text names, wholly or by its beginning."""
        answer = self.send("GET", f"/api/sandboxes/{quote(text, safe='')}/status")
        if answer.is_success:
            return text
        if answer.status_code != 404:
            raise self.explain_failure(answer)
        page = self.get("/api/sandboxes", search=text, limit=50)
        found = [
            item
            for item in page["items"]
            if item["project"].startswith(text) or item["id"].startswith(text)
        ]
        if len(found) == 1:
            return str(found[0]["project"])
        if not found:
            raise fail(
                Exit.NOT_FOUND, f"No sandbox is called {text!r}.", "`sandkeeper ls` lists all."
            )
        names = ", ".join(item["project"] for item in found[:8])
        raise fail(Exit.USAGE, f"{text!r} begins several: {names}.")

    def path(self, text: str, verb: str = "") -> str:
        """The route of one sandbox."""
        project = quote(self.resolve(text), safe="")
        return f"/api/sandboxes/{project}{'/' + verb if verb else ''}"

    def follow(self, path: str, *, after: str | None = None) -> Iterator[tuple[str, Any]]:
        """Events of a live stream as (name, JSON), for ever; a lost stream is taken up again."""
        last = after
        while True:
            headers = {"Last-Event-ID": last} if last else {}
            try:
                with self._http.stream("GET", path, headers=headers, timeout=None) as answer:
                    if answer.status_code != 200:
                        answer.read()
                        raise self.explain_failure(answer)
                    for seq, name, data in _blocks(answer.iter_lines()):
                        last = seq or last
                        yield name, json.loads(data)
            except httpx.HTTPError as error:
                sys.stderr.write(f"The stream broke ({error}); trying again.\n")
            time.sleep(1)

    def wait_for(self, text: str, states: set[str], *, within_s: float) -> dict[str, Any]:
        """The status as soon as it is one of `states`."""
        path = self.path(text, "status")
        deadline = time.monotonic() + within_s
        while True:
            status: dict[str, Any] = self.get(path)
            if status["status"] in states:
                return status
            if time.monotonic() > deadline:
                raise fail(Exit.TIMEOUT, f"{text} is still {status['status']}.")
            time.sleep(0.2)


def dashboard_url(url: str, token: str) -> str:
    """The dashboard with a pass in the fragment, which no browser sends to any server."""
    return f"{find_dashboard(url)}/#pass={token}"


def exit_code(status: int, problem: dict[str, Any]) -> Exit:
    """The exit code of an error answer."""
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


def _blocks(lines: Iterator[str]) -> Iterator[tuple[str | None, str, str]]:
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
    """Seconds of `90`, `90s`, `15m`, `2h`, `1d`; ends the command on anything else."""
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
        raise fail(Exit.USAGE, f"{text!r} is not a duration above zero.")
    return value
