"""What the network is: planes, Clos tiers, links as columns, SRv6 addresses, static tables, parts and limits.

Pure: it is given a `FabricSpec` and chance as arguments, and does no I/O.
"""
