"""What host applications use to test against Sandkeeper."""
