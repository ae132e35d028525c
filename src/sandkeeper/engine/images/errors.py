"""The one error of images."""

from __future__ import annotations

from sandkeeper.engine.errors import BadRequestError


class ImageError(BadRequestError):
    """An image cannot be used; the message says why and what to do. It fails the build."""
