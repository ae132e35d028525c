"""Alembic migrations, carried inside the package so that ``sandkeeper db`` works when installed."""
