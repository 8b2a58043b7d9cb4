"""Fakes that are shipped: an API server in process, simulated kubelets, and a real control plane on loopback."""
