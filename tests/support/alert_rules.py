"""The shipped alert rules, taken apart into the series that they select."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

RULES = Path(__file__).parents[2] / "deploy" / "prometheus-rules.yaml"

_SELECTOR = re.compile(r"\b(sandkeeper_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label, such as `task="idle-sweep"`."""

    label: str
    operator: str
    pattern: str

    @property
    def alternatives(self) -> list[str]:
        """The values that it names; each must exist, or that part of it can never match."""
        return self.pattern.split("|") if "~" in self.operator else [self.pattern]

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.label, "")
        is_equal = (
            re.fullmatch(self.pattern, value) is not None
            if "~" in self.operator
            else value == self.pattern
        )
        return is_equal != self.operator.startswith("!")


@dataclass(frozen=True, slots=True)
class Selector:
    """The series that one part of a rule's expression selects."""

    alert: str
    metric: str
    matchers: tuple[Matcher, ...]

    def finds(self, series: Iterable[tuple[str, Mapping[str, str]]]) -> bool:
        """Tell whether any of these series, given by name and labels, is selected."""
        return any(
            name == self.metric and all(one.matches(labels) for one in self.matchers)
            for name, labels in series
        )


def read_rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def read_selectors() -> list[Selector]:
    return [
        Selector(
            rule["alert"],
            metric,
            tuple(Matcher(*found) for found in _MATCHER.findall(conditions)),
        )
        for rule in read_rules()
        for metric, conditions in _SELECTOR.findall(rule["expr"])
    ]
