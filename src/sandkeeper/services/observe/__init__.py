"""Record what the provider says: webhooks, event polling, reconciliation."""
