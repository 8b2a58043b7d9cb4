"""How packets find their way: the Multipath Reliable Connection (MRC), once, as pure rules over columns.

Everything here is a function of numbers and arrays that are given: no socket, no clock, no chance of its own. The
simulators and the endpoint on real sockets run these very rules, plain or compiled (see `compiled`).

- `transport`: packets to the byte.
- `columns`: the state of queue pairs as structured arrays; `settings` makes its parameters from an `MrcSpec`.
- `evs`: entropy values, their four states, the rotation, replacement and readmission.
- `sender`, `acks`, `recovery`, `ports`, `control`: the requester. `receiver`, `reverse`: the responder.
- `congestion`: the window, by NSCC or fixed.
- `invariants`: what must hold after every step.
"""
