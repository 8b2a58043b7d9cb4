"""Where a run's state lives besides in its ranks: the memory of peers, local disks, the checkpoint store.

A state is cut into pieces (`piece`, `tensors`); every snapshot puts each piece into two failure domains (`placement`),
where keepers hold it (`keeper`); it counts once the ranks have agreed on its digests (`agreement`). What is taken back
is verified piece by piece, and a bad tier falls back to the next (`recall`).
"""
