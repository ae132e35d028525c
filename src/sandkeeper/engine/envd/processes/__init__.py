"""The process half of envd."""
