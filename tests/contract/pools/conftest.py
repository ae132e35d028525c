"""Databases for the tests of the pools' rows."""

from __future__ import annotations

from support.databases import database_url, postgres_template, postgres_url, sqlite_template

__all__ = ["database_url", "postgres_template", "postgres_url", "sqlite_template"]
