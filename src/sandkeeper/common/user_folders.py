"""Where a user's own data and settings are."""

from __future__ import annotations

import os
from pathlib import Path


def user_data_folder() -> Path:
    """Return the default folder of a user's data."""
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "sandkeeper"


def user_settings_file() -> Path:
    """Return the user's own settings file; the one in the current folder takes precedence."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "sandkeeper" / "sandkeeper.toml"


def find_settings_files() -> list[Path]:
    """Return the settings files that are there; the one in the current folder comes first."""
    return [one for one in (Path("sandkeeper.toml"), user_settings_file()) if _is_there(one)]


def _is_there(path: Path) -> bool:
    """Return whether the file exists; a folder that this user may not enter has none for it."""
    try:
        return path.is_file()
    except PermissionError:
        return False
