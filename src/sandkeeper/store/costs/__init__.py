"""Tables of money: usage and budgets."""
