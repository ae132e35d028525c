"""What every shape on the wire rests on, and the receipt of a wake, which many of them carry."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints
from pydantic.alias_generators import to_camel

NO_NUL = r"^[^\x00]*$"
"""No program, environment or PostgreSQL text can have a NUL in it."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_NUL)]
Text = Annotated[str, StringConstraints(max_length=4096, pattern=NO_NUL)]
StartCommand = Annotated[str, StringConstraints(min_length=1, max_length=8192, pattern=NO_NUL)]
Folder = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=NO_NUL)]
VariableName = Annotated[
    str, StringConstraints(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
]
StateName = Literal["STARTING", "RUNNING", "PAUSED", "KILLED", "EXPIRED", "TERMINATED", "UNKNOWN"]
MethodName = Literal["nothing", "resume", "reboot", "recreate"]


class PlainModel(BaseModel):
    """A shape whose fields have the same names on the wire."""

    # Built on first use: a client imports a hundred shapes and uses a few. A server needs them all.
    model_config = ConfigDict(defer_build=True)

    @classmethod
    def build_all(cls) -> None:
        """Build this shape and all that derive from it, so that FastAPI defers nothing either."""
        cls.model_config["defer_build"] = False
        cls.model_rebuild()
        for one in cls.__subclasses__():
            one.build_all()


class ApiModel(PlainModel):
    """The base of every shape whose names are camelCase on the wire: all but a few old ones."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, serialize_by_alias=True
    )


class RequestModel(ApiModel):
    """A request's body: an unknown field is an error, never ignored."""

    model_config = ConfigDict(extra="forbid")


class KeptFiles(ApiModel):
    """What the provider itself brought back."""

    memory: bool
    disk: bool


class LostFiles(ApiModel):
    """A file that could not be restored, or not be read, and why."""

    path: str
    reason: str


class ReceiptOut(ApiModel):
    """What a wake kept, restored, lost and could not read. No list names more than a hundred."""

    method: MethodName
    recreated: bool
    reason: str
    kept: KeptFiles
    files_version: int
    files_gap_ms: int | None
    files_note: str | None
    checked: int
    hashed: int
    newer: int
    restored: int
    restored_paths: list[str]
    lost: list[str]
    lost_count: int
    losses: list[LostFiles]
    unread: list[LostFiles]
    not_kept: list[str]
    not_kept_count: int
    app_started: bool
    app_kept: bool
    files_pending: bool
    took_ms: int


class OwnerOut(ApiModel):
    kind: Literal["project", "job", "session", "pool"]
    id: str


class JobProblem(PlainModel):
    """Why a job's preview did not come back, as host applications of jobs read it."""

    message: str
    error_type: str


class Problem(ApiModel):
    """Every error, on every route (RFC 9457); `detail` is an object on the routes of jobs only."""

    type: str
    title: str
    status: int
    detail: str | JobProblem
    code: str
    retryable: bool
    hint: str
    request_id: str
    trace_id: str | None = None
