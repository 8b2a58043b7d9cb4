"""How a model is spread and what a step costs: pure arithmetic, before anything runs and without torch."""
