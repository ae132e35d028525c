"""Which wall a sandbox gets, by the operator's choice and its template."""

from __future__ import annotations

import pytest

from sandkeeper.engine.runtime.contract import Isolation
from sandkeeper.engine.sandboxes.isolation import IsolationPolicy, UnknownRuntimeError
from sandkeeper.engine.sandboxes.records import Blueprint, TemplateRecord

PLAIN = Blueprint()


def a_template(*names: str) -> TemplateRecord:
    return TemplateRecord(id="t1", names=names, tags={}, created_at=0, updated_at=0)


def test_bubblewrap_is_the_default() -> None:
    assert IsolationPolicy.parse([]).choose(a_template("web"), PLAIN) is Isolation.BUBBLEWRAP


def test_a_choice_holds_for_all_templates_or_for_one() -> None:
    policy = IsolationPolicy.parse(["runsc", "web=bubblewrap"])
    assert policy.choose(a_template("web"), PLAIN) is Isolation.BUBBLEWRAP
    assert policy.choose(a_template("other"), PLAIN) is Isolation.GVISOR
    assert policy.list_chosen() == {Isolation.GVISOR, Isolation.BUBBLEWRAP}


def test_a_snapshot_keeps_the_wall_of_its_sandbox() -> None:
    kept = Blueprint(isolation=Isolation.GVISOR)
    assert IsolationPolicy.parse([]).choose(a_template(), kept) is Isolation.GVISOR


def test_an_unknown_runtime_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownRuntimeError, match="'kata' is not a runtime: choose bubblewrap or"):
        IsolationPolicy.parse(["web=kata"])
