"""MRC in real packets: endpoints on UDP sockets, and what is built on them.

The rules are `weft.mrc`'s, compiled; this package gives them sockets, memory and time. `endpoint` is what Python sees;
`underlay` says how an EV becomes an address. Below it are the rooms of the compiled thread: `memory` (columns, system
calls, the journal), `packets` (in, out, timers, the loop) and `messages` (named messages and collective programs).
`torch_backend` makes a torch.distributed backend of it.
"""
