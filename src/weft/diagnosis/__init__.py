"""From times and states of a job's ranks to what is slow, stuck or wrong, who is to blame, and what it costs.

Pure: columns in, findings out. `weft.doctor` reads files and prints; `weft.training` measures.
"""
