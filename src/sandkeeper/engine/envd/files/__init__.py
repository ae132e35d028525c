"""The file half of envd."""
