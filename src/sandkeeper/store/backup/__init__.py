"""All rows at one moment, for backups."""
