"""Clone a repository without storing its token.

Git asks a credential helper for the password. The helper is a line of shell in git's arguments that
reads the token from an environment variable of this one command. So the token is in no argument
list, in no file and not in the clone's configuration. Git asks the helper for the repository's own
host only: a redirect or a submodule on another host does not get the token.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit, urlunsplit

from sandkeeper.domain.errors import InvalidRequestError
from sandkeeper.integrations.backend.contract import Repository

TOKEN_VARIABLE = "SANDKEEPER_CLONE_TOKEN"  # noqa: S105  The variable's name, not a token.
USER_VARIABLE = "SANDKEEPER_CLONE_USER"
HELPER = f'!f() {{ echo "username=${USER_VARIABLE}"; echo "password=${TOKEN_VARIABLE}"; }}; f'


@dataclass(frozen=True, slots=True)
class CloneCommand:
    """A git command and its private environment variables."""

    command: str
    env: dict[str, str] = field(repr=False)
    secret: str | None = field(repr=False)

    def redact(self, text: str) -> str:
        """Return the text without the token, in case git prints it."""
        return text.replace(self.secret, "…") if self.secret else text


def plan_clone(repository: Repository, into: str) -> CloneCommand:
    """Return the clone command. Raise InvalidRequestError for an unsafe URL or branch."""
    bare = _extract_credentials(repository)
    for word, name in ((bare.url, "URL"), (bare.branch or "main", "branch")):
        if not word or word.startswith("-") or any(ord(letter) < 32 for letter in word):
            raise InvalidRequestError(f"The repository's {name} is invalid.")
    arguments = ["git", "-c", "credential.helper=", "-c", "core.askPass="]
    env = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": ""}
    if bare.token:
        parts = urlsplit(bare.url)
        if parts.scheme not in {"https", "http"}:
            raise InvalidRequestError("A token needs an http or https URL.")
        arguments += ["-c", f"credential.{parts.scheme}://{parts.netloc}.helper={HELPER}"]
        env |= {TOKEN_VARIABLE: bare.token, USER_VARIABLE: bare.username}
    arguments += ["clone", "--quiet"]
    if bare.branch:
        arguments += ["--branch", bare.branch]
    if bare.depth:
        arguments += ["--depth", str(bare.depth)]
    arguments += ["--", bare.url, into]
    return CloneCommand(shlex.join(arguments), env, bare.token)


def _extract_credentials(repository: Repository) -> Repository:
    parts = urlsplit(repository.url)
    if parts.scheme not in {"https", "http"} or "@" not in parts.netloc:
        return repository
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    host = parts.netloc.rpartition("@")[2]
    return replace(
        repository,
        url=urlunsplit(parts._replace(netloc=host)),
        token=repository.token or unquote(password or user) or None,
        username=unquote(user) if password and not repository.token else repository.username,
    )
