"""The words of the preview gateway's own answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandkeeper.domain.gateway.visits import PreviewProblem
from sandkeeper.domain.receipt import StepName


@dataclass(frozen=True, slots=True)
class ProblemWords:
    """A page's title and text, and what a program is told to do."""

    title: str
    message: str
    hint: str


PROBLEMS: Final = {
    PreviewProblem.NO_PREVIEW: ProblemWords(
        "There is no such preview",
        "No project has this address. It may have been deleted.",
        "Read previewUrl in the sandbox's status.",
    ),
    PreviewProblem.SIGN_IN: ProblemWords(
        "This preview is private",
        "Open it with a share link, or sign in.",
        "Send a client token of this project as a bearer token, or use a share link.",
    ),
    PreviewProblem.REFUSED: ProblemWords(
        "You may not see this preview",
        "Your sign-in or link does not open it, or another site asked for it.",
        "Ask the project's owner for a share link.",
    ),
    PreviewProblem.LINK_OVER: ProblemWords(
        "This link is not valid",
        "It has expired, was revoked, or could be opened once only. Ask for a new one.",
        "POST /api/sandboxes/{project}/links creates one.",
    ),
    PreviewProblem.ASLEEP: ProblemWords(
        "This sandbox is asleep",
        "Open this page again later, or wake it in the dashboard.",
        "POST /api/sandboxes/{project}/wake wakes it; then ask again.",
    ),
    PreviewProblem.WAKING: ProblemWords(
        "Waking up",
        "The sandbox was asleep. This page turns into the app as soon as it answers.",
        "Ask again after the time in Retry-After.",
    ),
    PreviewProblem.NO_PORT: ProblemWords(
        "This sandbox has no port of its own",
        "Name a port in the address: {port}--{name}.",
        "Create the sandbox with a port, or name one in the host.",
    ),
    PreviewProblem.PROVIDER_AWAY: ProblemWords(
        "The sandbox cannot be reached",
        "Its provider does not answer. Nothing is lost: reload this page in a moment.",
        "Try again after the time in Retry-After.",
    ),
    PreviewProblem.APP_STARTING: ProblemWords(
        "The app is starting",
        "The sandbox runs, and nothing answers on this port yet. This page reloads by itself.",
        "Try again after the time in Retry-After.",
    ),
    PreviewProblem.APP_ENDED: ProblemWords(
        "The app has stopped",
        "The sandbox runs, and its app has ended.",
        "GET /api/sandboxes/{project}/log has its last lines; a wake starts it again.",
    ),
    PreviewProblem.APP_BROKE_OFF: ProblemWords(
        "The app broke off",
        "It closed the connection without an answer.",
        "Read the app's log.",
    ),
    PreviewProblem.WRONG_PORT: ProblemWords(
        "Nothing listens on this port",
        "The sandbox runs, and no server listens here.",
        "Use a port on which a server listens.",
    ),
    PreviewProblem.INSTANCE_GONE: ProblemWords(
        "The sandbox has just stopped",
        "Its state is being checked. This page reloads by itself.",
        "Try again after the time in Retry-After.",
    ),
    PreviewProblem.TOO_MUCH: ProblemWords(
        "Too many requests",
        "This preview gets more requests than it may.",
        "Wait as long as Retry-After says.",
    ),
    PreviewProblem.BAD_REQUEST: ProblemWords(
        "This request cannot be passed on",
        "Another server could read its head as something else.",
        "Send each header once, and no line breaks in them.",
    ),
}

STEPS: Final = {
    StepName.RESUMING: "Resuming the sandbox",
    StepName.REBOOTING: "Starting the sandbox from its disk",
    StepName.RECREATING: "Creating a new sandbox",
    StepName.RESTORING_FILES: "Putting files back",
    StepName.STARTING_APP: "Starting the app",
    StepName.WAITING_FOR_PORT: "Waiting for the app to answer",
}
