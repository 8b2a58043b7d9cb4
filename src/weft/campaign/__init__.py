"""Months of a cluster in simulated time: the cluster's decisions, carried out by a world that has no machines."""
