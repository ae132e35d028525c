"""When a sandbox is paused and when it ends, and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sandkeeper.domain.decisions.priority import Overflow, Priority

DEFAULT_TEMPLATE: Final = "base"
"""The template of a sandbox for which none was named."""


class IdleAction(StrEnum):
    """What happens to a sandbox that has been idle for too long."""

    PAUSE = "pause"
    KILL = "kill"


class AppOnResume(StrEnum):
    """What happens to the app of a sandbox that was resumed with its memory."""

    KEEP = "keep"
    """Leave it alone if it still answers; restart it otherwise."""
    RESTART = "restart"


class FilesOnResume(StrEnum):
    """When the files of a sandbox that was resumed with its disk are compared with the saved ones.

    An app is never started on files that were not compared.
    """

    AFTER = "after"
    """Once it is ready, beside its use: what changed inside since then is left alone."""
    BEFORE = "before"


class PreviewAccess(StrEnum):
    """Who may see a preview at the gateway."""

    PRIVATE = "private"
    """Those with a share link, and those who may change the project."""
    MEMBERS = "members"
    """Everyone, too, who may read the project."""
    PUBLIC = "public"


class PreviewUse(StrEnum):
    """Which requests to a preview count as use, and so keep the sandbox awake."""

    NONE = "none"
    NAVIGATION = "navigation"
    """A person opens a page."""
    INTERACTION = "interaction"
    """Also what a page writes, and what a user sends over a socket."""
    ALL = "all"

    @property
    def counts_messages(self) -> bool:
        """Return whether messages over a socket count."""
        return self in {PreviewUse.INTERACTION, PreviewUse.ALL}


@dataclass(frozen=True, slots=True)
class Policy:
    """When a sandbox is paused and when it ends. ``None`` for a time means never."""

    idle_timeout_s: float | None = 180.0
    lifetime_s: float | None = 3600.0
    lifetime_max_s: float = 86_400.0
    extend_while_active: bool = True
    newborn_grace_s: float = 60.0
    woken_grace_s: float = 30.0
    paused_lifetime_s: float | None = None
    on_idle: IdleAction = IdleAction.PAUSE
    # With both bounds, the idle timeout is learned within them and starts at `idle_timeout_s`.
    idle_min_s: float | None = None
    idle_max_s: float | None = None
    warm_grace_s: float = 60.0
    # How long one command inside, or a busy processor, counts as work; 0 never looks.
    work_max_s: float = 3600.0
    app_on_resume: AppOnResume = AppOnResume.KEEP
    files_on_resume: FilesOnResume = FilesOnResume.AFTER
    # Whether files that may hold secrets (`.env`, `*.pem`) are kept; None as the setting says.
    keep_secret_files: bool | None = None
    # Who may see the preview, and whether a person's visit wakes; None as the settings say.
    preview_access: PreviewAccess | None = None
    wake_on_visit: bool | None = None
    preview_use: PreviewUse = PreviewUse.INTERACTION
    # How urgent it is when not all can run, and what happens then; None follows from its owner.
    priority: Priority | None = None
    overflow: Overflow | None = None

    @property
    def is_adaptive(self) -> bool:
        """Return True when the idle timeout is learned from the sandbox's own gaps."""
        return self.idle_min_s is not None and self.idle_max_s is not None

    def keeps_secret_files(self, *, default: bool) -> bool:
        """Return whether files that may hold secrets are kept outside the sandbox."""
        return default if self.keep_secret_files is None else self.keep_secret_files

    @property
    def lifetime_ms(self) -> int | None:
        """Return the lifetime in the unit of the status response."""
        return None if self.lifetime_s is None else round(self.lifetime_s * 1000)


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to create the sandbox, now and again after its end.

    ``region`` is the wanted region: one, or several separated by commas, the nearest first.
    ``tenant`` is the named tenant; the record has the one that follows from it.
    """

    template: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None
    start_command: str | None = None
    workdir: str | None = None
    region: str | None = None
    tenant: str | None = None

    @property
    def template_name(self) -> str:
        """Return the name of the template that is used."""
        return self.template or DEFAULT_TEMPLATE
