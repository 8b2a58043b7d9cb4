"""The page of `weft rehearse --html`: one file, made from the rehearsal's document and from nothing else."""
