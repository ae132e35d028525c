"""What every shape on the wire rests on, and the receipt of a wake, which many of them carry."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

MethodName = Literal["nothing", "resume", "reboot", "recreate"]


class ApiModel(BaseModel):
    """What every shape shares."""

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
    """A file that could not be put back, or not be looked at, and why."""

    path: str
    reason: str


class ReceiptOut(ApiModel):
    """What a wake kept, restored, lost and could not read. No list names more than a hundred."""

    method: MethodName
    recreated: bool
    reason: str
    kept: KeptFiles
    files_version: int
    checked: int
    hashed: int
    newer: int
    restored: int
    restored_paths: list[str]
    lost: list[str]
    lost_count: int
    losses: list[LostFiles]
    unread: list[LostFiles]
    app_started: bool
    took_ms: int
