"""Fakes that are shipped: an API server in process, simulated kubelets, a real control plane, a packet forger."""
