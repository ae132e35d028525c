"""Take in what the provider says: webhooks, event polling, reconciliation."""
