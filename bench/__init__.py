"""Measures the product beside the floors of the same machine, in one run."""
