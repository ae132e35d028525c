"""The static files of the pane and the dashboard, and the routes that serve them."""

from __future__ import annotations

from sandkeeper.web.assets import Asset, Assets
from sandkeeper.web.pages import PAGE_CSP, web_routes

__all__ = ["PAGE_CSP", "Asset", "Assets", "web_routes"]
