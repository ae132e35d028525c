"""Previews: their addresses, who may see them, and what was asked of them."""
