"""Readers, one file each: they recognise what a tool wrote, and turn it into evidence.

Another distribution adds one by the entry point `weft.readers`: an object like `base.Reader`.
"""
