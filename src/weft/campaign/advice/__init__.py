"""Advice on other schedulers' queues: why a job of a Slurm or Kueue snapshot waits, when it starts, and what if."""
