"""The protocol as rules over columns: sender, receiver, acknowledgements, recovery, entropy values, congestion.

- `settings`: the row of numbers that all rules read, made from an `MrcSpec`.
- `evs`, `skipping`, `blame`: entropy values, their four states, the rotation, replacement and readmission.
- `sender`, `acks`, `recovery`, `ports`, `control`: the requester. `receiver`, `reverse`: the responder.
- `congestion`: the window, by NSCC or fixed. `numbers`: arithmetic that they share.

In every rule `pair` is the row of a queue pair, `qp` that row, `ev_index` the place of an EV in its table.
"""
