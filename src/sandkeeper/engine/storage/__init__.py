"""The engine's database and data folder."""
