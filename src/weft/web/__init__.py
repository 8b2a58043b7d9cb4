"""Faces on the network: the cluster's HTTP interface. The only place that imports a web framework."""
