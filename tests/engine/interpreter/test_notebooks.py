"""What people know from notebooks: IPython's language, its results, and its packages."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from e2b_code_interpreter import Sandbox

from sandkeeper.engine.interpreter.layer import PackagesLayer
from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.isolation import not_on_gvisor
from support.user_engine import make_user_engine

PICTURE = (
    "from PIL import Image\npicture = Image.new('RGBA', (8, 8), 'red')\n"
    "picture.show()\npicture.save('picture.png')\n"
)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("    x = 20\n    print(x + 1)", "21\n"),
        ("%cd /tmp\n!pwd", "/tmp\n/tmp\n"),
        ("%env COLOUR=green\n!echo $COLOUR", "env: COLOUR=green\ngreen\n"),
        ("%%bash\nfor n in 1 2; do echo $n; done", "1\n2\n"),
        ("found = !echo one; echo two\nprint(list(found))", "['one', 'two']\n"),
        ("name = 'you'\n!echo hello {name}", "hello you\n"),
        ("%time done = 1\nprint(done)", "Wall time"),
        ("%%writefile /tmp/made.txt\nsome text", "Writing /tmp/made.txt\n"),
        ("print(type(get_ipython()).__name__)", "ZMQInteractiveShell\n"),
    ],
)
def test_the_language_of_notebooks_is_understood(box: Sandbox, code: str, printed: str) -> None:
    ran = box.run_code(code, context=box.create_code_context())

    assert ran.error is None, ran.error
    assert printed in "".join(ran.logs.stdout)


def test_earlier_results_are_at_hand(box: Sandbox) -> None:
    context = box.create_code_context()
    box.run_code("6 * 7", context=context)

    assert box.run_code("_ + 1, Out[1], In[1]", context=context).text == "(43, 42, '6 * 7')"


def test_results_come_as_ipython_shows_them(box: Sandbox) -> None:
    raw = box.run_code("display({'text/html': '<b>x</b>', 'a/b': 'c'}, raw=True)").results[0]
    pictures = box.run_code(f"{PICTURE}picture").results
    helped = box.run_code("len?").results[0]
    array = box.run_code("import numpy\n{'n': numpy.arange(3), 'm': numpy.float64(1.5)}").results[0]

    assert (raw.html, raw.text, raw.extra) == ("<b>x</b>", None, {"a/b": "c"})
    assert [one.png[:5] for one in pictures] == ["iVBOR"] * 3
    assert [one.is_main_result for one in pictures] == [False, False, True]
    assert "Return the number of items" in helped.text
    assert array.json == {"n": [0, 1, 2], "m": 1.5}
    assert box.run_code("'it''s'").text == "its"
    assert box.run_code("'a text';").results == []


def test_code_runs_inside_an_event_loop_as_in_a_notebook(box: Sandbox) -> None:
    """What a call leaves running goes on after it."""
    context = box.create_code_context()
    left = (
        "import asyncio, pathlib\n"
        "async def work():\n"
        "    await asyncio.sleep(0)\n"
        "    pathlib.Path('/tmp/worked').touch()\n"
        "task = asyncio.create_task(work())"
    )

    assert box.run_code(left, context=context).error is None
    assert eventually_sync(lambda: box.files.exists("/tmp/worked"))
    assert box.run_code("await task; task.done()", context=context).text == "True"


def test_code_that_asks_for_input_is_told_that_there_is_none(box: Sandbox) -> None:
    asked = box.run_code("input('your name?')").error

    assert asked is not None
    assert asked.name == "StdinNotImplementedError"


def test_code_that_leaves_gets_a_new_process(box: Sandbox) -> None:
    context = box.create_code_context()

    left = box.run_code("lost = 1\nexit()", context=context).error

    assert left is not None
    assert left.name == "ProcessEnded"
    assert box.run_code("'lost' in globals()", context=context).text == "False"


def test_the_packages_of_e2b_are_there_for_code_and_commands(box: Sandbox) -> None:
    used = "import bokeh, bs4, cv2, openpyxl, plotly, requests, scipy, seaborn, sklearn, sympy"

    assert box.run_code(used, timeout=170).error is None
    found = box.commands.run("python3 -c 'import numpy, IPython; print(numpy.__name__)'; npm -v")
    assert found.stdout.startswith("numpy\n")
    shown = box.run_code("import plotly.express as px\npx.bar(x=[1], y=[2]).show()", timeout=170)
    assert shown.error is None, shown.error
    assert "application/vnd.plotly.v1+json" in shown.results[-1].extra


def test_a_package_installed_by_the_code_can_be_imported_at_once(box: Sandbox) -> None:
    """In the same call even, and where the user's folder for packages did not exist before."""
    wheel = io.BytesIO()
    about = "greetings-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greetings.py", "said = 'hello'")
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    name = "/tmp/greetings-1.0-py3-none-any.whl"
    box.files.write(name, wheel.getvalue())
    if box.commands.run("python3 -m pip --version || true").stdout == "":
        pytest.skip("this machine's Python has no pip")

    install = f"%pip install -q --no-deps --break-system-packages {name}"
    ask = "import greetings\nprint(greetings.__file__)\ngreetings.said"
    ran = box.run_code(f"{install}\n{ask}", timeout=120)

    assert (ran.error, ran.text) == (None, "hello")
    assert "/usr/local/" in "".join(ran.logs.stdout), "where every user finds its programs"


def test_the_service_is_healthy_and_has_two_contexts_from_the_start(engine: Engine) -> None:
    with Sandbox.create(timeout=600, **engine.sdk_options()) as box:
        headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": "49999"}
        health = httpx.get(f"{engine.url}/health", headers=headers, timeout=60)
        assert health.status_code == 200
        languages = [one.language for one in box.list_code_contexts()]
        assert languages == ["python", "javascript"]
        assert "node" not in box.commands.run("ps -eo comm").stdout, "none is started before use"
        root = box.create_code_context(cwd="/root", language="python")
        assert box.run_code("import os; os.getcwd()", context=root).text == "/root"


@pytest.fixture
def bare_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """An engine of a user who has no packages, on a machine without a network."""
    for name in [one for one in os.environ if one.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    running = Engine(lend_base(tmp_path_factory, tmp_path / "engine"))
    try:
        yield running.start()
    finally:
        running.stop()


def test_without_its_packages_plain_python_runs_and_the_log_says_why(bare_engine: Engine) -> None:
    with Sandbox.create(timeout=600, **bare_engine.sdk_options()) as box:
        box.run_code("import math\nkept = 41")
        assert box.run_code("await __import__('asyncio').sleep(0, kept + 1)").text == "42"
        assert box.run_code("{'a': [kept]}").results[0].json == {"a": [41]}
        failed = box.run_code("def divide():\n    return 1 / 0\ndivide()").error
        assert failed is not None
        assert "line 2, in divide\n    return 1 / 0" in failed.traceback
    said = "the code interpreter's packages were not installed"
    assert eventually_sync(lambda: said in bare_engine.log)
    assert "then run `sandkeeper engine interpreter` again" in bare_engine.log


@not_on_gvisor("it needs root, which test_gvisor.py checks")
def test_an_ordinary_user_has_the_same_interpreter(packages: PackagesLayer) -> None:
    with make_user_engine() as engine:
        own = engine.data.parent / ".cache" / "sandkeeper" / packages.name_for(None)
        own.parent.mkdir(parents=True)
        # Linked instead of installed: it is the same folder but for the owner.
        subprocess.run(["cp", "-al", packages.folder, own], check=True)
        engine.start()
        with Sandbox.create(timeout=600, **engine.sdk_options()) as box:
            ran = box.run_code("import pandas\n!whoami\npandas.DataFrame({'a': [1]})", timeout=170)
            assert (ran.error, ran.logs.stdout) == (None, ["user\n"])
            assert ran.results[0].data == {"a": [1]}
