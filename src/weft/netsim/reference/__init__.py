"""The readable simulator: what docs/simulation.md defines, in the order in which it defines it.

`packets` and `ports` are the things that move and where they wait; `flows` feeds queue pairs; `world` is the loop over
slots; `records` keeps what is measured.
"""
