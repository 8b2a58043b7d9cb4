"""What a run measures: time by class, MFU, energy, stragglers, evaluations, and where the figures go."""
