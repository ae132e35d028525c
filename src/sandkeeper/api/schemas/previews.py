"""The shapes of share links, own domains and the requests of previews."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints

from sandkeeper.api.schemas.base import ApiModel, Name, RequestModel


class ShareLinkRequest(RequestModel):
    """A link that opens one preview in any browser that has it.

    Without a `port` it opens the sandbox's own. With `once` it is good for one browser.
    """

    port: int | None = Field(default=None, ge=1, le=65535)
    path: Annotated[str, StringConstraints(max_length=500)] = "/"
    once: bool = False
    expires_in_s: int = Field(default=86_400, ge=60, le=90 * 86_400)


class ShareLinkOut(ApiModel):
    """A share link. Its secret is in its URL, which only its creation returns."""

    id: str
    port: int | None
    path: str
    once: bool
    uses: int
    created_at: datetime
    created_by: str
    expires_at: datetime


class NewShareLink(ShareLinkOut):
    url: str


class ShareLinkList(ApiModel):
    items: list[ShareLinkOut]


class PreviewVisitRequest(RequestModel):
    """The URL of a preview, or of a page of it."""

    url: Annotated[str, StringConstraints(max_length=2000)]


class PreviewVisit(ApiModel):
    """A URL that opens the preview in this browser: good once, for a minute."""

    url: str
    expires_at: datetime


class DomainRequest(RequestModel):
    """A host name that leads to a project's preview."""

    host: Annotated[str, StringConstraints(max_length=253)]
    project: Name
    port: int | None = Field(default=None, ge=1, le=65535)


class DomainOut(ApiModel):
    host: str
    project: str
    port: int | None
    url: str
    created_at: datetime
    created_by: str


class DomainList(ApiModel):
    items: list[DomainOut]


class PreviewRequestOut(ApiModel):
    """One request to a preview, without query, headers and body."""

    at: datetime
    method: str
    path: str
    status: int
    took_ms: int
    received_bytes: int
    sent_bytes: int
    kind: str
    """What it was: navigation, reload, write, socket, dev_socket, icon, background or machine."""
    who: str


class PreviewRequestList(ApiModel):
    items: list[PreviewRequestOut]
