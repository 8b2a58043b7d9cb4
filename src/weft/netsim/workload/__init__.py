"""Who sends what to whom: patterns, collectives, training steps, and the files of Chakra and htsim."""
