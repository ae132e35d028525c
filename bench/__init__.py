"""Measure the product beside the baselines of the same machine, in one run."""
