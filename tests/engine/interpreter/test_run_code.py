"""Running code in a sandbox, through the official SDK as it is."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

from support.engine_process import Engine
from support.eventually import eventually_sync
from support.isolation import not_on_gvisor

PORT = "49999"
DOCUMENT = Path(__file__).parents[3] / "docs" / "execution.md"
PICTURE = (
    "class Picture:\n"
    "    def _repr_html_(self): return '<b>picture</b>'\n"
    "    def _repr_png_(self): return b'\\x89PNG'\n"
    "    def _repr_svg_(self): raise ValueError('no svg today')\n"
    "    def __repr__(self): return 'a picture'\n"
)


def skip_without(box: Sandbox, language: str) -> None:
    program = {"javascript": "node", "python": "python3"}.get(language, language)
    if box.commands.run(f"command -v {program} || true").stdout == "":
        pytest.skip(f"{program} is not installed on this machine")


def test_variables_stay_and_the_last_expression_is_the_result(box: Sandbox) -> None:
    context = box.create_code_context()

    first = box.run_code("import math\nprint('hello')\nx = 41", context=context)
    second = box.run_code("x + int(math.sqrt(1))", context=context)

    assert (first.text, first.logs.stdout, first.error) == (None, ["hello\n"], None)
    assert (second.text, second.results[0].is_main_result) == ("42", True)
    assert (first.execution_count, second.execution_count) == (1, 2)
    assert box.run_code("_;", context=context).results == []


def test_a_result_comes_in_every_form_it_has(box: Sandbox) -> None:
    shown: list[Any] = []
    code = f"{PICTURE}display(Picture())\n{{'a': [1, None]}}"

    execution = box.run_code(code, on_result=shown.append)

    picture, value = execution.results
    assert (picture.html, picture.png, picture.svg) == ("<b>picture</b>", "iVBORw==", None)
    assert (picture.text, picture.is_main_result) == ("a picture", False)
    assert (value.json, value.text, value.is_main_result) == (
        {"a": [1, None]},
        "{'a': [1, None]}",
        True,
    )
    assert shown == [picture, value]
    html = box.run_code("from IPython.display import HTML, display\nHTML('<i>x</i>')")
    assert html.results[0].html == "<i>x</i>"


def test_every_kind_of_display_arrives_as_its_own(box: Sandbox) -> None:
    hooked = ["html", "markdown", "svg", "latex", "javascript", "jpeg", "pdf", "png"]
    hooks = "".join(f"    def _repr_{kind}_(self): return b'{kind}'.decode()\n" for kind in hooked)
    bundle = "{'text/latex': '$x$', 'text/plain': 'x', 'model/gltf': 'a cube'}"
    code = (
        f"class Hooked:\n{hooks}    def __repr__(self): return 'hooked'\n"
        f"class Bundled:\n    def _repr_mimebundle_(self, **_): return {bundle}\n"
        "display(Hooked())\nBundled()"
    )

    everything, bundled = box.run_code(code).results

    assert {kind: everything[kind] for kind in hooked} == {kind: kind for kind in hooked}
    assert (bundled.latex, bundled.text, bundled.extra) == ("$x$", "x", {"model/gltf": "a cube"})


def test_numbers_that_json_does_not_know_arrive_as_null(box: Sandbox) -> None:
    """A parser that keeps to the standard, as JavaScript's does, would refuse the whole result."""
    result = box.run_code("{'a': [float('nan'), float('-inf'), 1.5]}").results[0]

    assert result.json == {"a": [None, None, 1.5]}


def test_notebook_habits_work(box: Sandbox) -> None:
    shell = box.run_code("!echo from the shell\nfound = 1\n!echo oops >&2")
    assert (shell.logs.stdout, shell.logs.stderr) == (["from the shell\n"], ["oops\n"])
    assert box.run_code("import asyncio\nawait asyncio.sleep(0, 'awaited')").text == "awaited"


def test_an_error_has_its_name_its_words_and_the_line(box: Sandbox) -> None:
    heard: list[Any] = []

    failed = box.run_code("def divide():\n    return 1 / 0\ndivide()", on_error=heard.append).error

    assert failed is not None
    assert heard == [failed]
    assert (failed.name, failed.value) == ("ZeroDivisionError", "division by zero")
    assert (
        "line 2, in divide()\n      1 def divide():\n----> 2     return 1 / 0" in failed.traceback
    )
    assert "inside" not in failed.traceback
    wrong = box.run_code("def f(:").error
    assert wrong is not None
    assert wrong.name == "SyntaxError"
    left = box.run_code("import sys; sys.exit(3)").error
    assert left is not None
    assert left.name == "SystemExit"
    assert box.run_code("divide.__name__").text == "divide"


def test_output_is_heard_while_the_code_still_runs(box: Sandbox) -> None:
    """The code waits for a file that only the listener to its own output writes."""
    waiting = (
        "import os, sys, time\n"
        "print('go', end='')\n"
        "while not os.path.exists('/tmp/heard'): time.sleep(0.01)\n"
        "print('over', file=sys.stderr)"
    )
    printed: list[str] = []

    execution = box.run_code(
        waiting,
        on_stdout=lambda message: box.files.write("/tmp/heard", message.line) and None,
        on_stderr=lambda message: printed.append(message.line),
    )

    assert execution.error is None
    assert (execution.logs.stdout, printed) == (["go"], ["over\n"])


def test_javascript_keeps_its_variables_and_awaits(box: Sandbox) -> None:
    skip_without(box, "javascript")

    first = box.run_code("const n = 20; console.log('hey'); [n, {a: 1}]", language="javascript")
    again = box.run_code("const n = await Promise.resolve(21); n * 2", language="javascript")
    imported = box.run_code("import { basename } from 'node:path'\nbasename('/a/b')", language="js")
    failed = box.run_code("null.x", language="javascript").error

    assert (first.results[0].json, first.logs.stdout) == ([20, {"a": 1}], ["hey\n"])
    assert (again.text, imported.text) == ("42", "b")
    assert failed is not None
    assert failed.name == "TypeError"
    assert "node:inspector" not in failed.traceback


def test_javascript_imports_packages_of_npm(box: Sandbox) -> None:
    skip_without(box, "javascript")
    box.files.write("node_modules/is-odd/index.js", "module.exports = (n) => n % 2 === 1")

    odd = box.run_code("import isOdd from 'npm:is-odd@3.0.1'\nisOdd(3)", language="js")

    assert (odd.error, odd.text) == (None, "true")


def test_r_runs_where_its_kernel_is_installed_and_else_says_what_it_needs(box: Sandbox) -> None:
    if box.commands.run("ls /usr/share/jupyter/kernels/ir || true").stdout == "":
        with pytest.raises(NotFoundException, match=r"'r' needs a Jupyter kernel .*irkernel"):
            box.run_code("1", language="r")
        return
    context = box.create_code_context(language="r", cwd="/tmp", request_timeout=120)
    shown = box.run_code('print("hello")\nx <- 20', context=context)
    given = box.run_code(
        'c(Sys.getenv("COLOUR"), getwd())', context=context, envs={"COLOUR": "red"}
    )
    later = box.run_code('Sys.getenv("COLOUR")', context=context)
    failed = box.run_code("stop('no')", context=context).error

    assert shown.logs.stdout == ['[1] "hello"\n']
    assert box.run_code("x + 1", context=context).text == "[1] 21"
    assert given.text == '[1] "red"  "/tmp"'
    assert later.text == '[1] ""'
    assert failed is not None
    with pytest.raises(TimeoutException):
        box.run_code("while (TRUE) {}", context=context, timeout=2)
    assert box.run_code("x", context=context).text == "[1] 20"
    box.remove_code_context(context)
    assert eventually_sync(lambda: "IRkernel" not in box.commands.run("ps -eo args").stdout)


def test_bash_keeps_its_variables_folder_and_functions(box: Sandbox) -> None:
    first = box.run_code("cd /tmp; V='a b'; f() { echo \"f $1\"; }; sleep 60 &", language="bash")
    second = box.run_code("pwd; f \"$V\"; echo 'it''s!' >&2; kill %1; false", language="bash")

    assert (first.logs.stdout, first.logs.stderr, first.error) == ([], [], None)
    assert "".join(second.logs.stdout) == "/tmp\nf a b\n"
    assert "".join(second.logs.stderr) == "its!\n"
    assert second.error is not None
    assert (second.error.name, second.error.value) == ("ExitCode", "1")


@pytest.mark.parametrize(
    ("language", "before", "endless", "after"),
    [
        ("python", "kept = 1", "while True: pass", "print(kept)"),
        ("javascript", "let kept = 1", "while (true) {}", "console.log(kept)"),
        ("javascript", "let kept = 1", "await new Promise(() => {})", "console.log(kept)"),
        ("bash", "kept=1", "while true; do sleep 0.1; done", "echo $kept"),
    ],
)
def test_code_that_never_ends_is_interrupted_when_its_caller_leaves(
    box: Sandbox, language: str, before: str, endless: str, after: str
) -> None:
    skip_without(box, language)
    context = box.create_code_context(language=language)
    box.run_code(before, context=context)

    with pytest.raises(TimeoutException):
        box.run_code(endless, context=context, timeout=1)

    assert box.run_code(after, context=context).logs.stdout == ["1\n"]


def test_code_that_ignores_the_interrupt_is_ended(box: Sandbox) -> None:
    context = box.create_code_context()
    box.run_code("lost = 1", context=context)
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"

    with pytest.raises(TimeoutException):
        box.run_code(stubborn, context=context, timeout=1)

    assert box.run_code("'lost' in globals()", context=context).text == "False"


def read_peak_kb(status: str) -> int:
    return max(int(kb) for kb in re.findall(r"VmHWM:\s+(\d+) kB", status))


@not_on_gvisor("a process does not tell its greatest size")
def test_a_gigabyte_of_output_is_cut_and_kept_nowhere(engine: Engine, box: Sandbox) -> None:
    assert engine.process is not None
    own = Path(f"/proc/{engine.process.pid}/status")
    context = box.create_code_context()
    code = "for _ in range(1024): print('x' * 2**20)\n'y' * 10**8"
    before = read_peak_kb(own.read_text())

    execution = box.run_code(code, context=context, timeout=300)

    assert read_peak_kb(own.read_text()) - before < 64 * 1024
    service = box.commands.run("cat /proc/$(pgrep -of 'python3 -I')/status")
    assert read_peak_kb(service.stdout) < 128 * 1024

    printed = "".join(execution.logs.stdout)
    assert len(printed) < 9 * 2**20
    assert printed.endswith("[the rest is left out: more than 8 MB were printed]\n")
    assert execution.text is not None
    assert execution.text.endswith("[the rest is left out: 100000000 characters]")
    assert len(execution.text) < 2 * 2**20


def test_a_process_that_ends_itself_is_told_and_replaced(box: Sandbox) -> None:
    context = box.create_code_context()

    ended = box.run_code("import os\nprint('bye')\nos._exit(7)", context=context)

    assert ended.logs.stdout == ["bye\n"]
    assert ended.error is not None
    assert (ended.error.name, "exit code 7" in ended.error.value) == ("ProcessEnded", True)
    assert box.run_code("1 + 1", context=context).text == "2"
    forked = "import os\nchild = os.fork()\nchild and os.waitpid(child, 0)[1]"
    assert box.run_code(forked, context=context).text == "0"


def test_contexts_are_apart_and_can_be_restarted_and_removed(box: Sandbox) -> None:
    box.files.make_dir("/home/user/project")
    one = box.create_code_context(cwd="/home/user/project")
    two = box.create_code_context(language="bash")

    box.run_code("mine = 1", context=one)
    folder = box.run_code("import os\nos.getcwd()", context=one).text
    foreign = box.run_code("mine").error
    box.restart_code_context(one)
    forgotten = box.run_code("mine", context=one)
    box.remove_code_context(two.id)

    assert (one.language, one.cwd, folder) == ("python", "/home/user/project", one.cwd)
    assert foreign is not None
    assert forgotten.error is not None
    assert (forgotten.error.name, forgotten.execution_count) == ("NameError", 1)
    listed = {context.id for context in box.list_code_contexts()}
    assert (one.id in listed, two.id in listed) == (True, False)
    with pytest.raises(NotFoundException, match=two.id):
        box.run_code("1", context=two)
    with pytest.raises(NotFoundException):
        box.remove_code_context("none")
    with pytest.raises(SandboxException, match="/not/there' does not exist"):
        box.create_code_context(cwd="/not/there")


def test_removing_a_context_ends_its_code(engine: Engine, box: Sandbox) -> None:
    context = box.create_code_context()
    code = "import time\nprint('go')\nwhile True: time.sleep(1)"

    ended = box.run_code(
        code, context=context, on_stdout=lambda _: box.remove_code_context(context)
    )

    assert ended.error is not None
    assert ended.error.name == "ProcessEnded"


@pytest.mark.parametrize("language", ["cobol", "deno", ""])
def test_a_language_that_is_not_there_is_named_beside_those_that_are(
    box: Sandbox, language: str
) -> None:
    said = rf"'{language}' is not supported; this sandbox runs bash,.* python"
    for ask in (
        lambda: box.run_code("1", language=language or " "),
        lambda: box.create_code_context(language=language or " "),
    ):
        with pytest.raises(NotFoundException, match=said.replace("''", "' '")):
            ask()


def test_typescript_runs_where_node_reads_it_and_else_says_what_it_needs(box: Sandbox) -> None:
    skip_without(box, "javascript")
    code = "const n: number = 40; interface A { b: string }; n + 2"
    reads = "process.exit(require('node:module').stripTypeScriptTypes ? 0 : 1)"
    if box.commands.run(f'node -e "{reads}" || echo no').stdout:
        with pytest.raises(NotFoundException, match=r"'typescript' needs node 22.13 or later"):
            box.run_code(code, language="ts")
    else:
        assert box.run_code(code, language="typescript").text == "42"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import os\nprint(os.environ.get('COLOUR', 'none'))"),
        ("javascript", "console.log(process.env.COLOUR ?? 'none')"),
        ("bash", "echo ${COLOUR-none}"),
    ],
)
def test_variables_of_one_call_are_gone_with_it(box: Sandbox, language: str, code: str) -> None:
    skip_without(box, language)

    given = box.run_code(code, language=language, envs={"COLOUR": "it's $green"})
    later = box.run_code(code, language=language)

    assert (given.logs.stdout, later.logs.stdout) == (["it's $green\n"], ["none\n"])


def test_output_without_a_listener_is_not_held_up(box: Sandbox) -> None:
    noisy = "(head -c 8000000 /dev/zero | tr '\\0' x; touch /tmp/printed) &"

    box.run_code(noisy, language="bash")

    assert eventually_sync(lambda: box.files.exists("/tmp/printed"))


@pytest.mark.parametrize("language", ["python", "javascript", "bash"])
def test_code_of_odd_characters_harms_nothing(box: Sandbox, language: str) -> None:
    skip_without(box, language)
    for code in ("", "'\0'", "# ü 🙂 \u2028", "\n" * 1000):
        box.run_code(code, language=language)

    say = {"python": "print('ü🙂')", "javascript": "console.log('ü🙂')", "bash": "echo ü🙂"}

    assert box.run_code(say[language], language=language).logs.stdout == ["ü🙂\n"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "no JSON"),
        (b"[]", "must be an object"),
        (b"{}", "code is missing"),
        (b'{"code": 1}', "code must be text"),
        (b'{"code": "1", "env_vars": {"a-b": "c"}}', "'a-b' is no name"),
        (b'{"code": "1", "env_vars": {"a": 1}}', "must be text"),
        (b'{"code": "1", "env_vars": {"a": "\\ud800"}}', "must be text"),
        (b"x" * (17 * 2**20), "longer than 16 MB"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(
    engine: Engine, box: Sandbox, body: bytes, said: str
) -> None:
    headers = {"E2b-Sandbox-Id": box.sandbox_id, "E2b-Sandbox-Port": PORT}

    answer = httpx.post(f"{engine.url}/execute", content=body, headers=headers, timeout=60)

    assert (answer.status_code, said in answer.json()["message"]) == (400, True)


def test_variables_live_through_a_pause_and_the_service_starts_again_without_memory(
    engine: Engine,
) -> None:
    box = Sandbox.create(timeout=600, **engine.sdk_options())
    try:
        box.run_code("kept = 7")
        box.pause()
        box = Sandbox.connect(box.sandbox_id, timeout=600, **engine.sdk_options())
        assert box.run_code("kept").text == "7"
        box.pause(mode="filesystem")
        box = Sandbox.connect(box.sandbox_id, timeout=600, **engine.sdk_options())
        fresh = box.run_code("kept").error
        assert fresh is not None
        assert fresh.name == "NameError"
    finally:
        box.kill()


def test_variables_live_through_a_crash_of_the_engine(own_engine: Engine) -> None:
    box = Sandbox.create(timeout=600, **own_engine.sdk_options())
    box.run_code("kept = 7")

    own_engine.kill9()
    own_engine.start()

    assert box.run_code("kept").text == "7"


def test_many_first_calls_start_one_service(engine: Engine) -> None:
    with Sandbox.create(timeout=600, **engine.sdk_options()) as box:
        with ThreadPoolExecutor(6) as pool:
            texts = list(pool.map(lambda n: box.run_code(f"{n} * 2").text, range(6)))
        assert texts == [str(n * 2) for n in range(6)]
        assert [one.language for one in box.list_code_contexts()].count("python") == 1


def test_a_plain_sandbox_has_no_interpreter_and_its_snapshot_template_keeps_it(
    engine: Engine,
) -> None:
    options = engine.sdk_options()
    with Sandbox.create("base", timeout=600, **options) as plain:
        with pytest.raises(TimeoutException):
            plain.run_code("1")
        assert "python" not in plain.commands.run("ps -eo args").stdout
    with Sandbox.create(timeout=600, **options) as box:
        box.files.write("note.txt", "kept")
        snapshot = box.create_snapshot().snapshot_id
    try:
        with Sandbox.create(snapshot, timeout=600, **options) as restored:
            assert restored.run_code("open('note.txt').read()").text == "kept"
    finally:
        Sandbox.delete_snapshot(snapshot, **options)


async def test_the_asynchronous_sdk_runs_two_contexts_at_once(engine: Engine) -> None:
    """Each context waits for the other's file, so neither could end alone."""
    box = await AsyncSandbox.create(timeout=600, **engine.sdk_options())
    try:
        one, two = await asyncio.gather(box.create_code_context(), box.create_code_context())
        meet = (
            "import os, time\nopen('/tmp/{own}', 'w').close()\n"
            "while not os.path.exists('/tmp/{other}'): time.sleep(0.01)\n'{own} met {other}'"
        )
        heard: list[str] = []

        async def hear(message: Any) -> None:
            heard.append(message.text)

        first, second = await asyncio.gather(
            box.run_code(meet.format(own="a", other="b"), context=one, on_result=hear),
            box.run_code(meet.format(own="b", other="a"), context=two),
        )

        assert (first.text, second.text, heard) == ("a met b", "b met a", ["a met b"])
    finally:
        await box.kill()


def test_the_program_in_the_documentation_runs_as_written(engine: Engine, tmp_path: Path) -> None:
    program = DOCUMENT.read_text().partition("```python\n")[2].partition("```")[0]
    (tmp_path / "program.py").write_text(program)

    ran = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=engine.env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    expected = DOCUMENT.read_text().partition("It prints:\n\n```\n")[2].partition("```")[0]
    assert ran.stdout == expected
