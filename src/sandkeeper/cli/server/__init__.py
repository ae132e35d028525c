"""Commands that run and maintain a keeper or an engine."""
