"""Transports: MRC and what it is compared with, one file each behind `base`, found by name in `registry`."""
