"""How packets find their way: the Multipath Reliable Connection (MRC), once, as pure rules over columns.

Everything here is a function of numbers and arrays that are given: no socket, no clock, no files, no random numbers of
its own. The simulators and the endpoint on real sockets run these very rules, plain or compiled (`weft.core.compile`).

- `wire`: packets to the byte, and the bytes around a payload.
- `columns`: the state of queue pairs as structured arrays.
- `rules`: what happens to that state, event by event.
- `invariants`: what must hold after every event.
"""
