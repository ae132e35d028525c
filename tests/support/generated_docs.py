"""The reference pages that are made from the code, so that they cannot be wrong.

`UPDATE_DOCS=1 pytest tests/conventions` writes them again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from pydantic import SecretStr
from typer.main import get_command

from sandkeeper.api.app import make_api
from sandkeeper.api.auth import Access
from sandkeeper.api.errors import status_of
from sandkeeper.api.routes import ROUTES
from sandkeeper.api.wire_errors import list_wire_errors
from sandkeeper.cli.connection import Exit
from sandkeeper.cli.main import COMMANDS, app
from sandkeeper.domain.errors import SandkeeperError
from sandkeeper.domain.texts.page_words import render_word_modules
from sandkeeper.encryption.errors import SecretDamagedError
from sandkeeper.settings import Settings
from sandkeeper.telemetry import Metrics

ACCESS = {
    Access.PUBLIC: "anyone",
    Access.SIGNED: "a body that is signed with the webhook's secret",
    Access.CALLER: "any key or token",
    Access.READ_ONE: "any key; a key with a prefix for its projects; a client token of this owner",
    Access.WRITE_ONE: "`operate` (with a prefix: for its projects), `admin`; a client token of "
    "this owner",
    Access.OPERATE_ONE: "`operate` (with a prefix: for its projects), `admin`",
    Access.OPERATE_SOME: "`operate` (with a prefix: for the projects that the body names), `admin`",
    Access.READ_ALL: "`read`, `operate` without a prefix, `admin`",
    Access.OPERATE: "`operate` without a prefix, `admin`",
    Access.MONITOR: "as `read_all`; anyone if the server listens on loopback and is addressed by a "
    "name of this machine or by `public_url`, or if `public_metrics` is set",
    Access.ADMIN: "`admin`",
}
"""Who may call a route with this access."""

MADE = "<!-- Made from the code by `UPDATE_DOCS=1 pytest tests/conventions`; do not edit. -->"


def render_settings() -> str:
    rows = [
        f"| `SANDKEEPER_{name.upper()}` | `{name}` | {_default(name, field)} "
        f"| {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return f"""{MADE}
# Settings

A flag wins over the environment, the environment over `./sandkeeper.toml`, that over the user's
own `~/.config/sandkeeper/sandkeeper.toml`, and that over the default. `sandkeeper config
show` tells
the value in force and where it came from. Units are in the names: `_s` is seconds, `_ms`
milliseconds.

A sandbox's own policy (`policy` in `PUT /api/sandboxes/{{project}}`) overrides the idle time,
the lifetime and `keep_secret_files` given here.

E2B's variables (`E2B_API_KEY`, `E2B_API_URL`, `E2B_SANDBOX_URL`, `E2B_DOMAIN`) keep their names and
say which provider `sandkeeper serve` uses. `sandkeeper up` uses its own local engine. Sessions also
read `E2B_TEMPLATE_ID`, `E2B_CODE_TIMEOUT`, `E2B_SESSION_TIMEOUT_MINUTES`, `E2B_DESKTOP_TIMEOUT`,
`E2B_DESKTOP_SESSION_TIMEOUT_MINUTES` and `E2B_DESKTOP_STREAM_READY_WAIT_MS`, after our own names.

| variable | in a file | default | meaning |
|---|---|---|---|
{chr(10).join(rows)}

Several regions are a table each, the first one the default:

```toml
[regions.europe]
api_url = "https://api.europe.example"
api_key = "e2b_…"
domain = "europe.example"
```
"""


def _default(name: str, field: Any) -> str:
    if name == "data":
        return "`~/.local/share/sandkeeper`"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, SecretStr) or value in ("", [], {}):
        return "empty"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"`{value}`"


def render_errors() -> str:
    rows = [
        f"| `{one.code}` | {status_of(one).value} | {'yes' if one.retryable else 'no'} "
        f"| {_first_line(one)} | {one.hint} |"
        for one in error_classes()
    ]
    return f"""{MADE}
# Errors

Every error, on every route, is `application/problem+json` (RFC 9457):

```json
{{"type": "urn:sandkeeper:wrong_state", "title": "Conflict", "status": 409,
 "detail": "A sandbox that is PAUSED cannot be extended.", "code": "wrong_state",
 "retryable": false, "hint": "Check the sandbox's status …", "requestId": "f3a9…"}}
```

Decide by `code`, which is stable; show `detail`; do what `hint` says. `retryable` tells whether the
same request may succeed later; then `Retry-After` says when. The request id is in the log. What is
not in this table is `internal` (500): a bug of ours, told only as a request id.

| code | status | retryable | meaning | what to do |
|---|---|---|---|---|
{chr(10).join(rows)}
"""


def error_classes() -> list[type[SandkeeperError]]:
    """Every error that can reach a caller, in the order of the tree."""
    return [*list_wire_errors(), SecretDamagedError]


def render_api() -> str:
    document = make_api().openapi()
    rows = []
    for entry in ROUTES:
        summary = document["paths"][entry.path.replace(":path", "")][entry.method.lower()][
            "summary"
        ]
        rows.append(f"| {entry.method} | `{entry.path}` | {entry.access.value} | {summary} |")
    access = "\n".join(f"| {one.value} | {ACCESS[one]} |" for one in Access)
    return f"""{MADE}
# API

JSON in camelCase, times in ISO 8601 and UTC, durations in milliseconds. `GET /openapi.json` and
`sandkeeper openapi` give the full description (OpenAPI 3.1); `GET /` is the dashboard.

**Access.** Send keys and tokens as `Authorization: Bearer …`; [Keys](keys.md) explains the scopes.
A browser gets a client token from your server (`POST /api/client-tokens`). `EventSource` sends no
headers, so it uses a stream token (`POST /api/stream-tokens`, sent as `?token=`, valid once and for
30 s).

| access | who is admitted |
|---|---|
{access}

**Addresses.** `{{project}}` is a project's id, or `job:…` / `session:…` for the other owners.
`PUT` creates sandboxes of projects only; `.` and `..` are not names.

**Errors** have one shape: see [errors](errors.md). **`Idempotency-Key`** is taken where something
is created or ended: the same key and body give the stored answer, another body 422, one still in
progress 409. **Status** carries an `ETag` and answers 304. **Lists** are paged by `cursor`; the
list of sandboxes has an `ETag` too, is compressed with zstd or gzip for callers that accept one,
and has a short form, `?fields=compact`. Its items are the bytes of their statuses: they cannot
differ.

**Live.** A stream sends `change` (an entry of the event log; its number is the event's id) and
`status` (the state after it, the same shape as the status route). Keep the status with the
greatest `version`, and of two with the same version the later one. `Last-Event-ID`
brings what was missed.

| method | path | access | what it does |
|---|---|---|---|
{chr(10).join(rows)}
"""


def render_openapi() -> str:
    return json.dumps(make_api().openapi(), indent=1, ensure_ascii=False) + "\n"


def render_cli() -> str:
    group: Any = get_command(app)
    parts = [_command(f"sandkeeper {name}", group.get_command(None, name)) for name in COMMANDS]
    codes = "\n".join(f"| {code.value} | {code.name.lower().replace('_', ' ')} |" for code in Exit)
    return f"""{MADE}
# Commands

Commands print data to stdout and messages to stderr. `--json` prints JSON (JSON lines with
`--follow`) and, on stderr, errors as one line of JSON: `{{"error": {{"code", "message", "hint",
"exitCode"}}}}`. `-q` prints ids only. Tables appear on a terminal only; they fit 60 columns and
more, cut long cells, and then leave out the last columns. Ids may be shortened to a unique prefix.
A command for several sandboxes resolves all names first: if one is wrong, it does nothing.
`sandkeeper --install-completion` lets the shell complete commands and projects. Durations are
written `90s`, `15m`, `2h`. The keeper's URL is `--url` or `SANDKEEPER_URL`, by default the
configured host and port; the key is `SANDKEEPER_OPERATOR_KEY` or the one in the data folder.

| exit code | meaning |
|---|---|
{codes}

{chr(10).join(parts)}"""


def _command(name: str, command: Any) -> str:
    children = getattr(command, "commands", {})
    if children:
        own = [_command(f"{name} {child}", one) for child, one in children.items()]
        described = _options(command)
        head = f"## {name}\n\n{_help(command)}\n\n{described}" if described else ""
        return head + "\n".join(own)
    return f"## {name}\n\n{_help(command)}\n\n{_options(command)}"


def _help(command: Any) -> str:
    return inspect.cleandoc(command.help or "").replace("\x0c", "").strip()


def _options(command: Any) -> str:
    rows = []
    for one in command.params:
        if one.name in {"help", "url"}:
            continue
        label = ", ".join(f"`{text}`" for text in (*one.opts, *one.secondary_opts))
        shown = label if one.param_type_name == "option" else f"`{one.name.upper()}`"
        rows.append(f"- {shown}: {getattr(one, 'help', None) or 'NAME=VALUE, as often as needed.'}")
    return "\n".join(rows) + "\n" if rows else ""


def _first_line(one: type[SandkeeperError]) -> str:
    return (one.__doc__ or "").strip().splitlines()[0]


def render_metrics() -> str:
    rows = []
    for collector in Metrics().registry._collector_to_names:
        labels = ", ".join(f"`{name}`" for name in getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return f"""{MADE}
# Metrics

`GET /metrics` has them in Prometheus' format, for one replica. Gauges of the fleet are the same
on every replica: take the maximum. Counters and histograms count what one replica did: add them
up. No series has an id, an owner or a tenant as a label, so their number does not grow with the
fleet. [Alerts](operations.md#health) and the Grafana dashboard in `deploy/grafana` use these names.

| name | type | labels | meaning |
|---|---|---|---|
{chr(10).join(rows)}
"""


def render_words(path: str) -> Callable[[], str]:
    """Return what renders a module of words for the npm package, as the server sends it."""

    def render() -> str:
        name, words = render_word_modules()[path]
        text = json.dumps(words, indent=1, ensure_ascii=False)
        return f"// {MADE.strip('<!-> ')}\nexport const {name} = {text};\n"

    return render


PACKAGE_WORDS = "../clients/typescript/words"

PAGES = {
    "metrics.md": render_metrics,
    "settings.md": render_settings,
    "errors.md": render_errors,
    "api.md": render_api,
    "cli.md": render_cli,
    "openapi.json": render_openapi,
    f"{PACKAGE_WORDS}/words.js": render_words("words.js"),
    f"{PACKAGE_WORDS}/job-words.js": render_words("job-words.js"),
}
