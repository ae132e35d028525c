"""Backups: the rows of the database and the saved files that they name, and their way back."""
