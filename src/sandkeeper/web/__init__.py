"""What people see: the static files of the pane and the dashboard, and how they are served."""

from __future__ import annotations

from sandkeeper.web.assets import Asset, Assets
from sandkeeper.web.pages import PAGE_CSP, web_routes

__all__ = ["PAGE_CSP", "Asset", "Assets", "web_routes"]
