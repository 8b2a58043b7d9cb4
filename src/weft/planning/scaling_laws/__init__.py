"""Scaling laws: the fit to finished runs, the ladder of small runs, and the self-test of a prediction."""
