"""What the fleet costs: counting, reports and budgets."""
