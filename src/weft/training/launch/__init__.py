"""Starts ranks and joins them: processes, process groups, and what is measured on all ranks at once."""
