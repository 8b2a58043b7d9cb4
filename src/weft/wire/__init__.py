"""MRC in real packets: endpoints on UDP sockets, and what is built on them.

The rules are `weft.mrc`'s, compiled; this package gives them sockets, memory and time. It is split as the life of a
packet is: `departures` and `arrivals` around the kernel's sendmmsg and recvmmsg, `transfers` for messages and programs,
`pump` for the loop; `endpoint` is what Python sees. `worlds` says how an EV becomes an address,
and `lab` builds a fabric of network namespaces for it.
"""
