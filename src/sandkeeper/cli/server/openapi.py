"""`sandkeeper openapi`: the OpenAPI document."""

from __future__ import annotations

from sandkeeper.api.app import make_api
from sandkeeper.cli.output import print_json


def openapi() -> None:
    """Print the OpenAPI document; needs no running server."""
    print_json(make_api().openapi())
