"""The third-party modules of the dashboard are those of the manifest, unchanged, with a licence."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from sandkeeper.web.assets import STATIC, Assets

PACKAGES = json.loads((STATIC.parent / "vendor.json").read_text())
FOLDER = STATIC / "vendor"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["name"])
def test_each_file_of_a_package_is_the_one_that_was_recorded(package: dict[str, Any]) -> None:
    assert package["integrity"].startswith("sha512-")
    assert any(file["path"].endswith(".LICENSE") for file in package["files"])
    for file in package["files"]:
        body = (FOLDER / file["path"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == file["sha256"], file["path"]


def test_nothing_else_is_in_their_folder_but_our_declarations() -> None:
    recorded = {file["path"] for package in PACKAGES for file in package["files"]}
    found = {file.name for file in FOLDER.iterdir() if not file.name.endswith(".d.mts")}
    assert found == recorded


def test_a_module_of_others_is_sent_as_it_is() -> None:
    asset = Assets().find("vendor/uplot.mjs")
    assert asset is not None
    assert asset.media_type.startswith("text/javascript")
    assert asset.body == (FOLDER / "uplot.mjs").read_bytes()
