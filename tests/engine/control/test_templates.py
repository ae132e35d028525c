"""Templates: the official SDK builds them, and sandboxes start from what was built."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest
from e2b import (
    AuthenticationException,
    BuildException,
    CommandExitException,
    Sandbox,
    Template,
    wait_for_file,
)

from support.engine_process import Engine


def a_name() -> str:
    return f"t-{uuid4().hex[:12]}"


def test_every_kind_of_step_is_really_carried_out(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.sh").write_text("echo main\n")
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").write_text("two")
    (tmp_path / "app" / "link").symlink_to("main.sh")
    template = (
        Template(file_context_path=str(tmp_path))
        .from_base_image()
        .set_envs({"COLOUR": "blue", "SPACED": "a b"})
        .set_workdir("/srv/work")
        .run_cmd("echo $COLOUR > here.txt && pwd >> here.txt")
        .run_cmd("whoami > /root/who.txt", user="root")
        .copy("app", "/srv/app", mode=0o755)
        .copy("one.txt", "renamed.txt")
        .copy("*.txt", "texts/")
    )
    said: list[str] = []
    name = a_name()
    built = Template.build(
        template,
        name,
        on_build_logs=lambda entry: said.append(entry.message),
        **engine.sdk_options(),
    )
    assert any("RUN echo $COLOUR" in line for line in said)
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    try:
        assert box.get_info().template_id == built.template_id
        assert box.commands.run("cat here.txt").stdout == "blue\n/srv/work\n"
        assert box.commands.run("cat /root/who.txt", user="root").stdout == "root\n"
        assert box.commands.run("/srv/app/main.sh; readlink /srv/app/link").stdout == (
            "main\nmain.sh\n"
        )
        assert box.commands.run("cat renamed.txt texts/*.txt; echo $SPACED").stdout == (
            "oneonetwoa b\n"
        )
        assert box.files.get_info("/srv/work/renamed.txt").owner == "user"
    finally:
        box.kill()


def test_a_template_stands_on_another_and_deletes_what_it_had(engine: Engine) -> None:
    lower, upper = a_name(), a_name()
    below = Template().from_base_image().run_cmd("echo 1 > one && echo 2 > two")
    Template.build(below, lower, **engine.sdk_options())
    above = Template().from_template(lower).run_cmd("rm one && echo 3 > three")
    Template.build(above, upper, **engine.sdk_options())
    with engine.client() as api:
        assert api.delete(f"/templates/{lower}").status_code == 204
        assert api.post("/v2/sandboxes", json={"templateID": lower}).status_code == 404
    box = Sandbox.create(upper, timeout=60, **engine.sdk_options())
    assert box.commands.run("ls").stdout.split() == ["three", "two"]
    box.kill()


def test_a_start_command_runs_in_every_sandbox(engine: Engine) -> None:
    name = a_name()
    template = (
        Template()
        .from_base_image()
        .set_start_cmd("date +%s%N > /tmp/started; exec sleep 1000", wait_for_file("/tmp/started"))
    )
    Template.build(template, name, **engine.sdk_options())
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.files.exists("/tmp/started")
    assert (
        "sleep 1000" in box.commands.run("ps -eo args || cat /proc/*/cmdline | tr '\\0' ' '").stdout
    )
    box.kill()


def test_a_failing_step_is_named(engine: Engine) -> None:
    name = a_name()
    template = Template().from_base_image().run_cmd("true").run_cmd("echo oh no >&2; exit 7")
    said: list[str] = []
    with pytest.raises(BuildException, match="exit code 7"):
        Template.build(
            template,
            name,
            on_build_logs=lambda entry: said.append(entry.message),
            **engine.sdk_options(),
        )
    assert "oh no" in said
    with engine.client() as api:
        builds = api.get(f"/templates/{name}").json()["builds"]
        path = f"/templates/{name}/builds/{builds[0]['buildID']}/status"
        status = api.get(path).json()
        assert (status["status"], status["reason"]["step"]) == ("error", "2")
        assert api.post("/v2/sandboxes", json={"templateID": name}).status_code == 404


def test_a_dockerfile_is_built_when_its_base_is_ours(engine: Engine) -> None:
    name = a_name()
    template = Template().from_dockerfile(
        "FROM e2bdev/base\nENV KIND=docker\nWORKDIR /work\nRUN echo $KIND > kind.txt\n"
    )
    Template.build(template, name, **engine.sdk_options())
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.files.read("/work/kind.txt") == "docker\n"
    box.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="other users need an engine that runs as root")
def test_a_template_may_have_a_user_of_its_own(engine: Engine) -> None:
    name = a_name()
    template = Template().from_dockerfile(
        "FROM e2bdev/base\nRUN useradd --create-home --shell /bin/bash app\n"
        "USER app\nWORKDIR /home/app\nRUN whoami > who && echo $HOME >> who\n"
    )
    Template.build(template, name, **engine.sdk_options())
    box = Sandbox.create(name, timeout=60, **engine.sdk_options())
    assert box.commands.run("id -un; pwd; cat who").stdout == "app\n/home/app\napp\n/home/app\n"
    assert box.commands.run("id -un; cat /home/app/who >&2", user="user").stdout == "user\n"
    box.files.write("mine", "1", user="app")
    assert box.files.get_info("/home/app/mine").owner == "app"
    box.commands.run("chmod 700 /home/app && echo more >> mine", user="app")
    with pytest.raises(CommandExitException):
        box.commands.run("cat /home/app/mine", user="user")
    with pytest.raises(AuthenticationException, match="mallory"):
        box.commands.run("true", user="mallory")
    box.kill()


def test_a_user_who_is_not_there_fails_the_step(engine: Engine) -> None:
    with pytest.raises(BuildException, match="no user 'mallory'"):
        Template.build(
            Template().from_base_image().set_user("mallory"), a_name(), **engine.sdk_options()
        )


def test_names_and_tags_lead_to_builds(engine: Engine) -> None:
    name = a_name()
    options = engine.sdk_options()
    assert not Template.exists(name, **options)
    Template.build(Template().from_base_image().run_cmd("echo 1 > v"), f"{name}:v1", **options)
    Template.build(Template().from_base_image().run_cmd("echo 2 > v"), f"{name}:v2", **options)
    assert Template.exists(name, **options)
    for tag, version in (("v1", "1"), ("v2", "2")):
        box = Sandbox.create(f"{name}:{tag}", timeout=60, **options)
        assert box.files.read("v") == f"{version}\n"
        box.kill()
    Template.assign_tags(f"{name}:v2", ["stable"], **options)
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(name, **options)}
    assert tags["stable"] == tags["v2"] != tags["v1"]
    Template.remove_tags(name, ["stable"], **options)
    assert "stable" not in {tag.tag for tag in Template.get_tags(name, **options)}
    with engine.client() as api:
        assert api.post("/v2/sandboxes", json={"templateID": f"{name}:none"}).status_code == 404
        listed = {one["templateID"]: one for one in api.get("/v2/templates").json()}
        assert {"base"} < set(listed)
        mine = next(one for one in listed.values() if name in one["names"])
        assert (mine["buildCount"], mine["buildStatus"]) == (2, "ready")
        forged = api.get(f"/templates/{mine['templateID']}/files/abc").json()
        assert api.put(forged["url"] + "0", content=b"x").status_code == 403
        assert api.delete("/templates/base").status_code == 400
