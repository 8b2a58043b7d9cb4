"""Reads anybody's files of a training run and says what is slow, stuck or wrong, and who is to blame.

Readers turn files into evidence; `weft.diagnosis` judges it. Nothing here needs weft's own trainer.
"""
