"""The settings of the preview gateway; a part of `Settings`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field


class GatewaySettings(BaseModel):
    """Where previews are, who may see them, and what each may use."""

    gateway_domain: str = Field(
        default="preview.localhost",
        pattern=r"^$|^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?$",
        description="Domain below which each project's preview has a host name, with `:PORT` if "
        "browsers reach it on another port than usual; empty serves no previews.",
    )
    preview_access: Literal["auto", "private", "members", "public"] = Field(
        default="auto",
        description="Who may see a preview whose policy says nothing: `private`, `members`, "
        "`public`, or `auto` (public while only this machine reaches the keeper, else private).",
    )
    gateway_requests_per_s: int = Field(
        default=200,
        ge=1,
        description="Maximum number of requests per second to one preview, in one process.",
    )
    gateway_sockets_max: int = Field(
        default=500,
        ge=1,
        description="Maximum number of WebSockets of one preview, in one process.",
    )
    gateway_bytes_per_s: int = Field(
        default=0,
        ge=0,
        description="Maximum number of bytes per second of one preview, both ways together, in one "
        "process; 0 means no limit.",
    )
    gateway_page: Path | None = Field(
        default=None,
        description="HTML file for the gateway's own pages, with `{title}`, `{message}`, "
        "`{details}`, `{style}` and `{script}` in it; empty means the built-in page.",
    )
