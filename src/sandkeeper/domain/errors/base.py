"""The root of the tree, and what each error has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Final

# "NotADesktop" → Not, A, Desktop.
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class SandkeeperError(Exception):
    """Something went wrong in Sandkeeper."""

    code: ClassVar[str]
    """Stable name on the wire. Only concrete classes have one."""
    hint: ClassVar[str] = "Search the server's log for the request id."
    retryable: ClassVar[bool] = False
    is_abstract: ClassVar[bool] = True
    """True for a class that only groups others: it can be caught, not raised."""

    def __init_subclass__(
        cls, *, abstract: bool = False, code: str | None = None, **kwargs: object
    ) -> None:
        """Derive the code from the class name; ``code`` is for a name that a builtin has taken."""
        super().__init_subclass__(**kwargs)
        cls.is_abstract = abstract
        if not abstract:
            name = cls.__name__.removesuffix("Error")
            cls.code = code or _WORD_START.sub("_", name).lower()

    def __init__(self, message: str | None = None, **fields: object) -> None:
        if self.is_abstract:
            raise TypeError(f"{type(self).__name__} is abstract: raise one of its subclasses.")
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.fields: dict[str, object] = fields
        super().__init__(self.message)

    def __str__(self) -> str:
        """Return the message with its fields, for logs."""
        if not self.fields:
            return self.message
        facts = ", ".join(f"{name}={value}" for name, value in sorted(self.fields.items()))
        return f"{self.message} ({facts})"

    @property
    def retry_after_s(self) -> float | None:
        """Return the seconds after which a retry makes sense, if known."""
        value = self.fields.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None

    @classmethod
    def walk(cls) -> Iterator[type[SandkeeperError]]:
        """Yield every concrete class of this branch, parents first."""
        if not cls.is_abstract:
            yield cls
        for child in cls.__subclasses__():
            yield from child.walk()


class InvalidSettingsError(SandkeeperError):
    """A setting is missing or invalid."""

    hint = "Check `sandkeeper config show` and docs/settings.md."
