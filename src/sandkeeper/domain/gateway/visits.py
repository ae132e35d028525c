"""Decide what becomes of a request to a preview. Everything it depends on is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sandkeeper.domain.gateway.requests import RequestKind
from sandkeeper.domain.policy import Policy, PreviewAccess
from sandkeeper.domain.states import State


class Admission(StrEnum):
    """Whether this visitor may see this preview."""

    ADMITTED = "admitted"
    UNKNOWN = "unknown"
    """It is not known who asks."""
    REFUSED = "refused"
    """It is known who asks, and that is not enough; or the request comes from another site."""


class PreviewProblem(StrEnum):
    """Why the gateway answers itself."""

    NO_PREVIEW = "no_preview"
    SIGN_IN = "sign_in"
    REFUSED = "refused"
    LINK_OVER = "link_over"
    ASLEEP = "asleep"
    WAKING = "waking"
    NO_PORT = "no_port"
    PROVIDER_AWAY = "provider_away"
    APP_STARTING = "app_starting"
    APP_ENDED = "app_ended"
    APP_BROKE_OFF = "app_broke_off"
    WRONG_PORT = "wrong_port"
    INSTANCE_GONE = "instance_gone"
    TOO_MUCH = "too_much"
    BAD_REQUEST = "bad_request"


STATUS = {
    PreviewProblem.NO_PREVIEW: 404,
    PreviewProblem.SIGN_IN: 401,
    PreviewProblem.REFUSED: 403,
    PreviewProblem.LINK_OVER: 410,
    PreviewProblem.ASLEEP: 503,
    PreviewProblem.WAKING: 503,
    PreviewProblem.NO_PORT: 404,
    PreviewProblem.PROVIDER_AWAY: 502,
    PreviewProblem.APP_STARTING: 502,
    PreviewProblem.APP_ENDED: 502,
    PreviewProblem.APP_BROKE_OFF: 502,
    PreviewProblem.WRONG_PORT: 502,
    PreviewProblem.INSTANCE_GONE: 503,
    PreviewProblem.TOO_MUCH: 429,
    PreviewProblem.BAD_REQUEST: 400,
}

RETRY_AFTER_S = {
    PreviewProblem.ASLEEP: 60,
    PreviewProblem.WAKING: 5,
    PreviewProblem.APP_STARTING: 2,
    PreviewProblem.INSTANCE_GONE: 5,
    PreviewProblem.PROVIDER_AWAY: 10,
    PreviewProblem.TOO_MUCH: 1,
}


@dataclass(frozen=True, slots=True)
class PassOn:
    """Hand the request to the app."""


@dataclass(frozen=True, slots=True)
class AnswerHere:
    """Answer it here; with `wakes`, start a wake first."""

    problem: PreviewProblem
    wakes: bool = False


VisitDecision = PassOn | AnswerHere


@dataclass(frozen=True, slots=True)
class Target:
    """What is known of the sandbox that a visit is for."""

    state: State
    is_waking: bool
    is_ready: bool
    port: int | None


@dataclass(frozen=True, slots=True)
class PreviewDefaults:
    """What holds for previews whose policy says nothing."""

    access: PreviewAccess
    wakes_public: bool
    """Whether a visit to a public preview wakes: on this machine, where only its user visits."""

    def find_access(self, policy: Policy | None) -> PreviewAccess:
        """Return who may see the preview; of one that does not exist, what the default says."""
        own = policy.preview_access if policy is not None else None
        return own or self.access

    def may_wake(self, policy: Policy) -> bool:
        """Return whether a person's visit wakes."""
        if policy.wake_on_visit is not None:
            return policy.wake_on_visit
        return self.wakes_public or self.find_access(policy) is not PreviewAccess.PUBLIC


def decide_visit(
    kind: RequestKind, admission: Admission, target: Target | None, *, may_wake: bool
) -> VisitDecision:
    """Return what becomes of the request.

    Who asks comes first, so that a stranger cannot learn which projects exist. Only a person who
    opens a page wakes; all else is told to come back.
    """
    if admission is not Admission.ADMITTED:
        is_unknown = admission is Admission.UNKNOWN
        return AnswerHere(PreviewProblem.SIGN_IN if is_unknown else PreviewProblem.REFUSED)
    if target is None or target.port is None:
        return AnswerHere(PreviewProblem.NO_PREVIEW if target is None else PreviewProblem.NO_PORT)
    is_coming = target.is_waking or target.state is State.STARTING
    if target.state is State.RUNNING and not (is_coming and kind.is_page and not target.is_ready):
        return PassOn()
    wakes = kind is RequestKind.NAVIGATION and may_wake and not is_coming
    return AnswerHere(
        PreviewProblem.WAKING if is_coming or wakes else PreviewProblem.ASLEEP, wakes=wakes
    )
