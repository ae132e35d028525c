"""Contexts: each a language, a folder and the variables of everything that ran in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import uuid
from typing import TYPE_CHECKING, Any

from sandkeeper.engine.interpreter.inside.interpreter_process import InterpreterProcess
from sandkeeper.engine.interpreter.inside.languages import MissingLanguageError, check_language

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkeeper.engine.interpreter.inside.interpreter_process import Emit

CONTEXTS_MAX = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALUE = re.compile(r"[^\0\ud800-\udfff]*")


class UnknownContextError(Exception):
    """No context has that id."""


class ContextRefusedError(Exception):
    """The request is refused; the message explains why."""


class CodeContext:
    """One line of executions. They run one after the other, in the order in which they came."""

    def __init__(self, language: str, cwd: str, texts: Mapping[str, str]) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self._texts = texts
        self._turn = asyncio.Lock()
        self._count = 0
        self._kernel: InterpreterProcess | None = None
        self._is_removed = False

    def describe(self) -> dict[str, str]:
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def warm_up(self) -> None:
        """Start the process now, so that the first call need not wait for it."""
        async with self._turn:
            await self._ensure_kernel()

    async def execute(self, code: str, env: Mapping[str, str], emit: Emit) -> None:
        """Run code and hand over everything that comes of it."""
        async with self._turn:
            try:
                kernel = await self._ensure_kernel()
                self._count += 1
                await emit({"type": "number_of_executions", "execution_count": self._count})
                await kernel.execute(code, env, emit, number=self._count)
            finally:
                if self._is_removed:
                    self._close()

    def restart(self) -> None:
        """Forget every variable. Running code is ended, and its caller gets an error."""
        self._count = 0
        if self._kernel is not None:
            self._kernel.end()

    def remove(self) -> None:
        """End the context. Running code is ended, and its caller gets an error."""
        self._is_removed = True
        self.restart()
        if not self._turn.locked():
            self._close()

    def _close(self) -> None:
        if self._kernel is not None:
            self._kernel.close()
            self._kernel = None

    async def _ensure_kernel(self) -> InterpreterProcess:
        if self._is_removed:
            raise UnknownContextError(f"context '{self.id}' was removed")
        if self._kernel is not None and self._kernel.is_ended:
            self._close()
        if self._kernel is None:
            try:
                self._kernel = InterpreterProcess(self.language, self.cwd, os.environ, self._texts)
            except OSError as error:
                raise ContextRefusedError(
                    f"{self.language} could not be started: {error}"
                ) from error
            # Output during start-up belongs to no execution.
            await self._kernel.execute("", {}, _ignore)
        return self._kernel


async def _ignore(_: dict[str, Any]) -> None:
    return


class CodeContexts:
    """All contexts of this sandbox. Each language has a default one."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._contexts: dict[str, CodeContext] = {}
        self._defaults: dict[str, str] = {}
        # As on E2B, these two are there from the start. Their processes start when they are used.
        for language in ("python", "javascript"):
            with contextlib.suppress(MissingLanguageError):
                self.get_default(language)

    def list_all(self) -> list[dict[str, str]]:
        return [context.describe() for context in self._contexts.values()]

    def get(self, context_id: str) -> CodeContext:
        if context_id not in self._contexts:
            raise UnknownContextError(f"context '{context_id[:80]}' not found")
        return self._contexts[context_id]

    def get_default(self, language: str | None) -> CodeContext:
        """Return the language's own context."""
        wanted = (language or "python").lower()
        context = self._contexts.get(self._defaults.get(wanted, ""))
        if context is None:
            name = check_language(wanted)
            context = self._contexts.get(self._defaults.get(name, "")) or self._add(name, _home())
            self._defaults[name] = self._defaults[wanted] = context.id
        return context

    def create(self, language: str | None, cwd: str | None) -> CodeContext:
        name = check_language(language)
        folder = os.path.join(_home(), os.path.expanduser(cwd or ""))  # noqa: PTH111, PTH118  # "" means the home
        if not os.path.isdir(folder):  # noqa: PTH112  # nothing here needs a Path
            raise ContextRefusedError(f"the folder '{folder[:200]}' does not exist")
        return self._add(name, os.path.normpath(folder))

    def remove(self, context_id: str) -> None:
        context = self.get(context_id)
        del self._contexts[context_id]
        context.remove()

    def _add(self, language: str, cwd: str) -> CodeContext:
        if len(self._contexts) >= CONTEXTS_MAX:
            raise ContextRefusedError(
                f"there are {CONTEXTS_MAX} contexts, the most; remove one first"
            )
        context = CodeContext(language, cwd, self._texts)
        self._contexts[context.id] = context
        return context


def check_env(given: object) -> dict[str, str]:
    """Return the variables of one call; they are there for that call only."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ContextRefusedError("env_vars must be an object of strings")
    for name, value in given.items():
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ContextRefusedError(
                f"env_vars: the value of '{name[:80]}' must be text without NUL"
            )
        if not _NAME.fullmatch(name):
            raise ContextRefusedError(f"env_vars: '{name[:80]}' is no name of a variable")
    return given


def _home() -> str:
    return os.environ.get("HOME") or "/"
