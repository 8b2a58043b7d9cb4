"""Processes and nodes: what carries decisions out on real machines."""
