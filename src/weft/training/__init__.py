"""Torch in the process: the model, its data, the mesh, exact numerics, checkpoints and accounts of a real training."""
