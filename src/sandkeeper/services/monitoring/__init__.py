"""Health, metrics history, feature flags, retention and explanations."""
