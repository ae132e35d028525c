"""The scripts of the pages have no words of their own about a sandbox: the server sends them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandkeeper.domain.texts.page_words import render_word_modules
from sandkeeper.domain.texts.presentation import PRESENTATIONS, WAKING
from sandkeeper.web.assets import STATIC, strip_comments

SCRIPTS = sorted(STATIC.rglob("*.js"))
TEXT = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
VALUE = re.compile(r"\$\{[^}]*\}")
# What a person reads begins with a capital letter and has more than one word; or says a state.
SENTENCE = re.compile(r"^[A-Z][\w',-]*[ .…]")
ABOUT_A_STATE = re.compile(
    r"sandbox|preview|provider|\bapp\b|asleep|sleep|paus|kill|expire|wak|crash|running|ready"
    r"|reach|connect|respond|answer|restor|recreat|lost|gone|terminat",
    re.IGNORECASE,
)
# Names of things to do or to look at, and what an action will do: none says how a sandbox is.
ABOUT_NO_STATE = (
    "Keep awake",
    "Kill ",
    "Last lines of the app's log",
    "Last wake",
    "Live view",
    "No sandbox matches.",
    "No sandboxes yet",
    "Open preview",
    "Paused when idle ",
    "Prevented by: ",
    "Records that differed from the provider, ",
    "Running inside: ",
    "Sandboxes appear here ",
    "Sleeps in",
    "Expires in",
    "Find a sandbox or a page",
    "New sandbox",
    "Steps of the last wake",
    "Stop live view",
    "Instances at the provider that no record refers to.",
    "The provider's list was incomplete, ",
    "The sandbox is killed at the provider. Its record ",
    "The server answered ",
)


def list_texts(script: Path) -> Iterator[str]:
    """Return every text in a script, without its comments."""
    source = strip_comments(script.read_bytes()).decode()
    for found in TEXT.finditer(source):
        yield found[1] if found[1] is not None else found[2]


def list_leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from list_leaves(one)
    elif isinstance(value, str):
        yield value


SERVERS_WORDS = {
    text
    for text in [
        *(text for _, words in render_word_modules().values() for text in list_leaves(words)),
        *(part for words in PRESENTATIONS.values() for part in (words.label, words.caption)),
        WAKING.label,
        WAKING.caption,
    ]
    if " " in text
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.name)
def test_a_script_repeats_no_words_of_the_server(script: Path) -> None:
    assert [text for text in list_texts(script) if text in SERVERS_WORDS] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda one: one.name)
def test_a_script_has_no_sentence_about_a_sandbox_of_its_own(script: Path) -> None:
    own = [
        text
        for text in list_texts(script)
        if SENTENCE.match(text)
        and ABOUT_A_STATE.search(VALUE.sub("", text))
        and not text.startswith(ABOUT_NO_STATE)
    ]
    assert own == []
