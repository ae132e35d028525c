"""The script that runs inside a sandbox to read and write files, and its client."""
