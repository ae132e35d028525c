"""Errors of a backend, in addition to the provider's errors.

::

    BackendError
    ├── BackendNotReadyError        used before `setup`, or after `teardown`
    ├── CommandError
    │   ├── CommandFailedError      non-zero exit code
    │   ├── CommandTimedOutError    killed after its time limit
    │   ├── OutputTooLongError      killed because of too much output
    │   ├── CloneFailedError        the repository could not be cloned
    │   └── AgentSetupFailedError   the agent's setup script failed
    └── NoSuchFileError             the path does not exist in the sandbox

Every `CommandError` has `exit_code` (None if the command was killed), `stdout` and `stderr`. For
errors of E2B or the engine a backend raises the provider errors of `sandkeeper.domain.errors`.
"""

from __future__ import annotations

from sandkeeper.domain.errors import SandkeeperError

# How much of each output the error's text shows; the attributes have all of it.
SHOWN_MAX = 2000


class BackendError(SandkeeperError, abstract=True):
    """A backend operation failed."""

    hint = "See docs/backend.md."


class BackendNotReadyError(BackendError):
    """The backend has no sandbox."""

    hint = "Call `setup` first; after `teardown` create a new backend."


class CommandError(BackendError, abstract=True):
    """A command in the sandbox failed."""

    hint = "The error contains exit code, stdout and stderr."

    def __init__(
        self,
        message: str | None = None,
        *,
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
    ) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr

    def __str__(self) -> str:
        """Return the message, the exit code and the end of both outputs."""
        code = "none" if self.exit_code is None else self.exit_code
        return (
            f"{self.message} (exit code {code})\n"
            f"stdout: {_tail(self.stdout)}\nstderr: {_tail(self.stderr)}"
        )


class CommandFailedError(CommandError):
    """The command failed."""


class CommandTimedOutError(CommandError):
    """The command exceeded its time limit and was killed."""

    hint = "Raise `timeout_s`, or run the command in the background."


class OutputTooLongError(CommandError):
    """The command printed too much and was killed."""

    hint = "Write the output to a file and read the part you need, or raise `output_max`."


class CloneFailedError(CommandError):
    """The repository could not be cloned."""

    hint = "Check the URL and branch; a private repository needs a token with read access."


class AgentSetupFailedError(CommandError):
    """The agent's setup script failed."""


class NoSuchFileError(BackendError):
    """The file does not exist in the sandbox."""

    hint = "Relative paths start in the backend's work folder."


def _tail(text: str) -> str:
    stripped = text.strip()
    return stripped if len(stripped) <= SHOWN_MAX else f"… {stripped[-SHOWN_MAX:]}"
