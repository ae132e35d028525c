"""E2B's variables of sessions, as backends of agents already set them."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource


class SessionVariables(PydanticBaseSettingsSource):
    """Variables under which agents' backends already configure E2B sessions; ours come first."""

    NAMES: ClassVar = {
        "E2B_TEMPLATE_ID": ("session_template", None),
        "E2B_CODE_TIMEOUT": ("code_timeout_s", 1),
        "E2B_SESSION_TIMEOUT_MINUTES": ("session_idle_timeout_s", 60),
        "E2B_DESKTOP_TIMEOUT": ("desktop_lifetime_s", 1),
        "E2B_DESKTOP_SESSION_TIMEOUT_MINUTES": ("desktop_idle_timeout_s", 60),
        "E2B_DESKTOP_STREAM_READY_WAIT_MS": ("stream_ready_timeout_ms", 1),
    }

    def get_field_value(
        self,
        field: FieldInfo,  # noqa: ARG002  The base class names it.
        field_name: str,
    ) -> tuple[Any, str, bool]:
        """Return the value of one setting in its own unit; text that is no number is kept."""
        for variable, (name, unit_s) in self.NAMES.items():
            text = os.environ.get(variable) or os.environ.get(variable.lower())
            if name == field_name and text:
                try:
                    return (text if unit_s is None else float(text) * unit_s), name, False
                except ValueError:
                    return text, name, False
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return all that are set."""
        found = {
            name: self.get_field_value(FieldInfo(), name)[0] for name, _ in self.NAMES.values()
        }
        return {name: value for name, value in found.items() if value is not None}
