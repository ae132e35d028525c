"""What can go wrong in a backend beside what the provider's own errors say.

::

    BackendError
    ├── BackendNotReadyError        used before `setup`, or after `teardown`
    ├── CommandError
    │   ├── CommandFailedError      ended with another exit code than 0
    │   ├── CommandTimedOutError    did not end in its time, and was ended
    │   ├── OutputTooLongError      printed more than is kept, and was ended
    │   ├── CloneFailedError        the repository could not be cloned
    │   └── AgentSetupFailedError   the agent's set-up script failed
    └── NoSuchFileError             the path does not exist inside

Every `CommandError` carries `exit_code` (None if the command never ended by itself), `stdout` and
`stderr`. They join the tree of `sandkeeper.domain.errors`, whose provider branch a backend raises
for everything that E2B or the engine refuses.
"""

from __future__ import annotations

from sandkeeper.domain.errors import SandkeeperError

# How much of each output is shown in an error's own text; the attributes have all of it.
SHOWN_MAX = 2000


class BackendError(SandkeeperError, abstract=True):
    """The backend could not do it."""

    hint = "See docs/backend.md."


class BackendNotReadyError(BackendError):
    """The backend has no sandbox."""

    hint = "Call `setup` first; after `teardown` make a new backend."


class CommandError(BackendError, abstract=True):
    """A command inside did not do what it should."""

    hint = "Its exit code and both of its outputs are in the error."

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
        """The message, the exit code and the end of both outputs."""
        code = "none" if self.exit_code is None else self.exit_code
        return (
            f"{self.message} (exit code {code})\n"
            f"stdout: {_end_of(self.stdout)}\nstderr: {_end_of(self.stderr)}"
        )


class CommandFailedError(CommandError):
    """The command failed."""


class CommandTimedOutError(CommandError):
    """The command did not end in its time, and was ended."""

    hint = "Give it more time with `timeout_s`, or run it in the background inside."


class OutputTooLongError(CommandError):
    """The command printed more than is kept, and was ended."""

    hint = "Let it write to a file, and read the part that matters."


class CloneFailedError(CommandError):
    """The repository could not be cloned."""

    hint = "Check its address and branch; a private one needs a token that may read it."


class AgentSetupFailedError(CommandError):
    """The agent's set-up script failed."""


class NoSuchFileError(BackendError):
    """There is no such file in the sandbox."""

    hint = "Relative paths are seen from the backend's work folder."


def _end_of(text: str) -> str:
    stripped = text.strip()
    return stripped if len(stripped) <= SHOWN_MAX else f"… {stripped[-SHOWN_MAX:]}"
