"""Cloning a repository without leaving its token anywhere.

Git asks a credential helper for the password, the helper is a line of shell in git's own arguments,
and the line reads the token from an environment variable that only this one command has. So the
token is in no argument list, in no file and not in the clone's configuration. The helper is asked
for the repository's own host only: a redirect or a submodule elsewhere does not get it.
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
class Cloning:
    """A command, and the variables that it alone may see."""

    command: str
    env: dict[str, str] = field(repr=False)
    secret: str | None = field(repr=False)

    def redact(self, text: str) -> str:
        """The text without the token, in case somebody's git prints it."""
        return text.replace(self.secret, "…") if self.secret else text


def plan_clone(repository: Repository, into: str) -> Cloning:
    """The clone of this repository. Raises InvalidRequestError for what git must not be given."""
    bare = _take_credentials_out(repository)
    for word, name in ((bare.url, "URL"), (bare.branch or "main", "branch")):
        if not word or word.startswith("-") or any(ord(letter) < 32 for letter in word):
            raise InvalidRequestError(f"The repository's {name} is not one.")
    arguments = ["git", "-c", "credential.helper=", "-c", "core.askPass="]
    env = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "SSH_ASKPASS": ""}
    if bare.token:
        parts = urlsplit(bare.url)
        if parts.scheme not in {"https", "http"}:
            raise InvalidRequestError("A token goes with an http or https URL only.")
        arguments += ["-c", f"credential.{parts.scheme}://{parts.netloc}.helper={HELPER}"]
        env |= {TOKEN_VARIABLE: bare.token, USER_VARIABLE: bare.username}
    arguments += ["clone", "--quiet"]
    if bare.branch:
        arguments += ["--branch", bare.branch]
    if bare.depth:
        arguments += ["--depth", str(bare.depth)]
    arguments += ["--", bare.url, into]
    return Cloning(shlex.join(arguments), env, bare.token)


def _take_credentials_out(repository: Repository) -> Repository:
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
