"""Measured runs: scripts here, their results beside them."""
