"""Packets to the byte: readable headers and packets, the integrity check, and the in-place form for compiled code.

`headers` holds one table for each header, `packets` joins them, `icrc` checks them, `inplace` reads and writes the same
bytes from columns. A test holds the two forms equal. Nothing here sends anything.
"""
