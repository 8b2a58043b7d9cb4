"""The compiled simulator: what docs/simulation.md defines, over flat columns, node by node and slot by slot.

A node is a switch, or the NICs below one T0. `layout` says what stands where, `fabric` builds the columns, `wires` and
`queues` hold packets in flight and waiting, `switches` and `nics` are what one node does in one slot, `kernel` walks
over nodes and slots, `world` is the run around it: flows, faults, records, threads. The protocol itself is the rules of
`weft.netsim.host.mrc_host`, which the reference runs too.
"""
