"""What only SQLite needs: its connections, and its file."""
