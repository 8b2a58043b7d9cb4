"""The commands below `weft lab`."""
