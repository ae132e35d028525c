"""What people read about a sandbox: labels, captions and explanations."""
