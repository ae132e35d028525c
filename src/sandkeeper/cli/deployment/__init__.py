"""Commands about a whole deployment: backups, and checks from outside."""
