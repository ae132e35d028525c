"""Templates from images, as the official SDK builds and uses them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from e2b import BuildException, Sandbox, Template, wait_for_file

from support.base_cache import lend_base
from support.engine_process import Engine
from support.eventually import eventually_sync
from support.images import (
    PASSWORD,
    USERNAME,
    Entry,
    Image,
    RunningRegistry,
    folder,
    make_image,
    make_system,
    make_tar,
    write_layout,
)
from support.isolation import IS_GVISOR, not_on_gvisor
from support.ordinary_user import find_python
from support.subordinate_engine import SubordinateEngine
from support.user_engine import UserEngine, make_user_engine

IS_RANGE = os.geteuid() == 0
APP = {
    "srv/app": folder(0o755, (33, 33)),
    "srv/app/page": Entry("hello\n", 0o640, (33, 33)),
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nwww:x:33:33::/srv:/bin/bash\n",
    "etc/group": "root:x:0:\nwww:x:33:\n",
    "opt/own/bin/greet": Entry("#!/bin/sh\necho greetings from $COLOUR\n", 0o755),
}


def an_app(**config: object) -> Image:
    """Make an image with a user, a folder and variables of its own."""
    settings = {
        "User": "www",
        "WorkingDir": "/srv/app",
        "Env": ["PATH=/opt/own/bin:/usr/bin:/bin", "COLOUR=green"],
        "Cmd": ["greet"],
        **config,
    }
    return make_image(make_system(), make_tar(APP), **settings)


def a_name() -> str:
    return f"t-{uuid4().hex[:12]}"


def build(engine: Engine, template: object) -> tuple[str, list[str]]:
    """Build a template; return its name and the log."""
    said: list[str] = []
    name = a_name()
    Template.build(
        template,  # type: ignore[arg-type]
        name,
        on_build_logs=lambda entry: said.append(entry.message),
        **engine.sdk_options(),
    )
    return name, said


@pytest.mark.skipif(not IS_RANGE, reason="other users need an engine that runs as root")
def test_a_sandbox_runs_as_the_user_of_its_image_in_its_folder_with_its_variables(
    engine: Engine, registry: RunningRegistry
) -> None:
    name, said = build(
        engine,
        Template().from_image(registry.push("app", an_app())).run_cmd("greet > made && id -un"),
    )
    assert any(line.startswith("layer 1 of 2: ") and line.endswith(" MB") for line in said)
    assert "www" in said
    assert any("is not started, as on E2B" in line and "greet" in line for line in said)
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.commands.run("id -un; pwd; cat made page; greet").stdout == (
        "www\n/srv/app\ngreetings from green\nhello\ngreetings from green\n"
    )
    found = box.files.get_info("/srv/app/page")
    assert (found.permissions, found.owner) == ("-rw-r-----", "www")
    # Nothing of the host's is there.
    assert not box.files.exists("/usr/bin/python3")
    assert box.files.read("/srv/app/page") == "hello\n"
    box.files.write("/srv/app/new", "kept")
    assert box.commands.run(
        "id -un; cat /srv/app/page 2>&1; echo $HOME", user="user"
    ).stdout.split() == [*("user", "cat:", "/srv/app/page:", "Permission", "denied", "/home/user")]
    snapshot = box.create_snapshot()
    box.kill()
    again = Sandbox.create(snapshot.snapshot_id, timeout=60, **engine.sdk_options())
    assert again.commands.run("id -un; cat new; greet").stdout == "www\nkeptgreetings from green\n"
    again.kill()


def test_an_image_without_a_user_has_the_usual_one(
    engine: Engine, registry: RunningRegistry
) -> None:
    image = make_image(make_system(), make_tar({"marker": "here"}))
    name, _said = build(engine, Template().from_image(registry.push("plain", image)))
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.commands.run("id -un; pwd; cat /marker").stdout == "user\n/home/user\nhere"
    if not IS_GVISOR:
        assert box.commands.run("sudo id -un; sudo id -u").stdout.endswith("0\n")
    box.commands.run("echo mine > file")
    box.pause(keep_memory=False)
    box.connect()
    assert box.commands.run("cat file").stdout == "mine\n"
    box.kill()


def test_a_dockerfile_may_begin_with_any_image(
    engine: Engine, registry: RunningRegistry, tmp_path: Path
) -> None:
    image = registry.push("docker", make_image(make_system(), Env=["KIND=image"]))
    (tmp_path / "copied.txt").write_text("copied")
    template = Template(file_context_path=str(tmp_path)).from_dockerfile(
        f"FROM {image}\nWORKDIR /work\nCOPY copied.txt .\nRUN echo $KIND > kind && id -un >> kind\n"
    )
    name, _said = build(engine, template)
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.commands.run("pwd; cat kind copied.txt").stdout == ("/work\nimage\nroot\ncopied")
    box.kill()


def test_a_private_image_needs_the_right_credentials(
    engine: Engine, private_registry: RunningRegistry
) -> None:
    name = private_registry.push("private", make_image(make_system(), make_tar({"a": "1"})))
    with pytest.raises(BuildException, match="give a user name and a password"):
        build(engine, Template().from_image(name))
    with pytest.raises(BuildException, match="check the user name, the password"):
        build(engine, Template().from_image(name, username=USERNAME, password="wrong"))
    with pytest.raises(BuildException, match="to '_json_key'"):
        build(engine, Template().from_gcp_registry(name, service_account_json={"a": "b"}))
    built, said = build(engine, Template().from_image(name, username=USERNAME, password=PASSWORD))
    assert PASSWORD not in str(said)
    with engine.client() as api:
        assert PASSWORD not in api.get(f"/templates/{built}").text
    assert PASSWORD.encode() not in (engine.data / "ledger.sqlite").read_bytes()


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("127.0.0.1:1/x", "cannot be reached.*check its name and this machine's network"),
        ("Not/An/Image", "is not an image's name"),
        ("oci:/etc/passwd", "must be in the engine's own folder"),
        ("oci:missing", "cannot be read"),
    ],
)
def test_an_image_that_cannot_be_had_fails_the_build_with_the_reason(
    engine: Engine, name: str, cause: str
) -> None:
    with pytest.raises(BuildException, match=cause):
        build(engine, Template().from_image(name))


def test_the_fields_of_a_registry_are_checked(engine: Engine) -> None:
    with engine.client() as api:
        made = api.post("/v3/templates", json={"name": a_name()}).json()
        path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
        for registry in ({"type": "quay"}, {"type": "registry", "username": "a"}, {"type": "aws"}):
            body = {"fromImage": "x", "fromImageRegistry": registry, "steps": []}
            answer = api.post(path, json=body)
            assert answer.status_code == 400
            assert "fromImageRegistry" in answer.json()["message"]


def test_a_crash_in_the_middle_leaves_nothing_half(
    own_engine: Engine, registry: RunningRegistry
) -> None:
    files = {f"many/{number}": "x" for number in range(8_000)}
    name = registry.push("many-files", make_image(make_system(), make_tar(files)))
    with own_engine.client() as api:
        made = api.post("/v3/templates", json={"name": a_name()}).json()
        path = f"/templates/{made['templateID']}/builds/{made['buildID']}"
        api.post(f"/v2{path}", json={"fromImage": name, "steps": []})

        drafts = "layers/.image-*/root/many"
        eventually_sync(lambda: any(own_engine.data.glob(drafts)), within_s=60)
    own_engine.kill9()
    own_engine.start()
    with own_engine.client() as api:
        assert api.get(f"{path}/status").json()["status"] == "error"
    eventually_sync(lambda: not any(own_engine.data.glob("layers/*")))
    built, said = build(own_engine, Template().from_image(name))
    assert any("cached" in line for line in said)
    box = Sandbox.create(built, timeout=60, **own_engine.sdk_options())
    assert box.files.exists("/many/7999")
    box.kill()


def test_any_image_may_be_the_base(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layout = tmp_path / "layout"
    write_layout(make_image(make_system(), make_tar({"marker": "base"}), Env=["A=b"]), layout)
    data = lend_base(tmp_path_factory, tmp_path / "engine")
    running = Engine(data, "--base", f"oci:{layout}")
    try:
        running.start()
        box = Sandbox.create(timeout=60, **running.sdk_options())
        assert box.commands.run("cat /marker; echo $A; id -un").stdout == "baseb\nuser\n"
        box.kill()
        # The image cannot be asked for any more, and is used as it was.
        shutil.rmtree(layout)
        running.restart()
        name, _said = build(running, Template().from_base_image().run_cmd("cat /marker > copy"))
        box = Sandbox.create(name, timeout=60, **running.sdk_options())
        assert box.files.read("/home/user/copy") == "base"
        box.kill()
    finally:
        running.stop()


def test_a_base_that_was_never_here_is_an_error_at_the_start(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = lend_base(tmp_path_factory, tmp_path / "engine")
    running = Engine(data, "--base", "127.0.0.1:1/x")
    try:
        with pytest.raises(AssertionError, match=r"--base 127\.0\.0\.1:1/x: .*cannot be reached"):
            running.start()
    finally:
        running.stop()


@pytest.fixture
def user_engine() -> Iterator[UserEngine]:
    with make_user_engine() as engine:
        yield engine


@not_on_gvisor("it needs the host's root")
def test_an_ordinary_user_has_images_with_one_id(
    user_engine: UserEngine, registry: RunningRegistry
) -> None:
    user_engine.start()
    name, said = build(user_engine, Template().from_image(registry.push("one-id", an_app())))
    assert any("needs an id of its own: 'user' is used" in line for line in said)
    box = Sandbox.create(name, timeout=60, **user_engine.sdk_options())
    assert box.commands.run("id -un; pwd; cat page; greet; sudo cat page").stdout == (
        "user\n/srv/app\nhello\ngreetings from green\nhello\n"
    )
    box.kill()


@not_on_gvisor("it needs the host's root")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.skipif(shutil.which("newuidmap") is None, reason="newuidmap is not installed")
@pytest.mark.skipif(find_python() is None, reason="no Python that another user may run")
def test_an_ordinary_user_with_subordinate_ids_keeps_the_owners(registry: RunningRegistry) -> None:
    with tempfile.TemporaryDirectory(prefix="sandkeeper-", ignore_cleanup_errors=True) as place:
        running = SubordinateEngine(Path(place))
        try:
            running.start()
            name, _said = build(running, Template().from_image(registry.push("sub", an_app())))
            box = Sandbox.create(name, timeout=60, **running.sdk_options())
            assert box.commands.run("id -un; cat page; stat -c %u:%g page").stdout == (
                "www\nhello\n33:33\n"
            )
            box.kill()
        finally:
            running.stop()


def test_a_start_command_is_what_the_template_sets(
    engine: Engine, registry: RunningRegistry
) -> None:
    image = registry.push("service", make_image(make_system(), Entrypoint=["false"]))
    template = (
        Template()
        .from_image(image)
        .set_start_cmd("echo up > /tmp/up; exec env read", wait_for_file("/tmp/up"))
    )
    name, _said = build(engine, template)
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.files.read("/tmp/up") == "up\n"
    box.kill()
