"""Which wall a new sandbox gets: the engine's default, or the one named for its template.

A sandbox keeps its wall for life, and so do its forks and snapshots: what was written behind the
stronger one never runs behind the weaker one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandkeeper.engine.runtime.contract import Isolation
from sandkeeper.engine.sandboxes.records import Blueprint, TemplateRecord

_BY_RUNTIME = {"bubblewrap": Isolation.BUBBLEWRAP, "runsc": Isolation.GVISOR}


class UnknownRuntimeError(ValueError):
    """The choice names no runtime; the message lists them."""


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """The operator's choice."""

    default: Isolation = Isolation.BUBBLEWRAP
    by_template: Mapping[str, Isolation] = field(default_factory=dict)

    @classmethod
    def parse(cls, choices: Iterable[str]) -> IsolationPolicy:
        """Return the policy for choices like `runsc` and `TEMPLATE=runsc`; the last one counts."""
        default, by_template = Isolation.BUBBLEWRAP, {}
        for choice in choices:
            template, _equals, runtime = choice.rpartition("=")
            isolation = _BY_RUNTIME.get(runtime)
            if isolation is None:
                known = " or ".join(_BY_RUNTIME)
                raise UnknownRuntimeError(f"'{runtime}' is not a runtime: choose {known}")
            if template:
                by_template[template] = isolation
            else:
                default = isolation
        return cls(default, by_template)

    def choose(self, template: TemplateRecord, blueprint: Blueprint) -> Isolation:
        """Return the wall of a sandbox of this template."""
        if blueprint.isolation is not None:
            return Isolation(blueprint.isolation)
        for name in (template.id, *template.names):
            if name in self.by_template:
                return self.by_template[name]
        return self.default

    def list_chosen(self) -> set[Isolation]:
        """Return every wall that some template has."""
        return {self.default, *self.by_template.values()}


BUBBLEWRAP_ONLY = IsolationPolicy()
"""What an engine does whose operator chose nothing."""
