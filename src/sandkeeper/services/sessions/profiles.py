"""The profile of each kind of session, from the settings."""

from __future__ import annotations

from dataclasses import replace

from sandkeeper.domain.sessions.session import Profile, SessionKind
from sandkeeper.services.sessions import desktop_display
from sandkeeper.settings import Settings


def make_profiles(settings: Settings) -> dict[SessionKind, Profile]:
    """Return the profile of each kind of session."""
    execution = Profile(
        kind=SessionKind.EXECUTION,
        template=settings.session_template,
        idle_timeout_s=settings.session_idle_timeout_s,
        lifetime_s=settings.lifecycle_timeout_s,
        code_timeout_s=settings.code_timeout_s,
        idle_min_s=settings.idle_timeout_min_s,
        idle_max_s=settings.idle_timeout_max_s,
        is_adaptive=settings.session_idle == "adaptive",
    )
    desktop = replace(
        execution,
        kind=SessionKind.DESKTOP,
        template=settings.desktop_template,
        idle_timeout_s=settings.desktop_idle_timeout_s,
        lifetime_s=settings.desktop_lifetime_s,
        env=desktop_display.ENV,
    )
    return {profile.kind: profile for profile in (execution, desktop)}
