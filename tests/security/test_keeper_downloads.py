"""What a sandbox's files can do in a browser that is signed in at the keeper: nothing."""

from __future__ import annotations

import secrets

from support.keeper_process import Keeper


def test_files_and_archives_are_downloads_and_never_pages(keeper: Keeper) -> None:
    project = f"downloads-{secrets.token_hex(4)}"
    page = b"<script>fetch('/api/switches')</script>"
    with keeper.client() as api:
        path = f"/api/sandboxes/{project}"
        assert api.put(path, json={}).status_code == 201
        name = 'ü"; x=.html'
        assert api.put(f"{path}/files/{name}", content=page).status_code == 200
        file = api.get(f"{path}/files/{name}")
        assert file.content == page
        again = api.get(f"{path}/files/{name}", headers={"If-None-Match": file.headers["etag"]})
        assert again.status_code == 304
        for answer in (file, again, api.get(f"{path}/archive")):
            assert answer.headers["content-disposition"].startswith("attachment; filename")
            assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
            assert answer.headers["x-content-type-options"] == "nosniff"
        api.delete(path)
