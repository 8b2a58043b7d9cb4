"""How a model is split over ranks: the mesh, one module for each axis, and the gradient reduction.

Free of torch itself, so that a plan can be checked without it; the modules for each axis import torch.
"""
