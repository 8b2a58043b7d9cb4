"""The words that everything else is written in: units, quantities, ids, seeds, clock, specs, errors, provenance.

The lowest layer. It knows nothing of networks or training and imports nothing heavy.
"""
