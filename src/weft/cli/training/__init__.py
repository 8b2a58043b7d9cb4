"""Commands for who trains on this machine: train, runs."""
