"""The decoder that is trained: single-device code that knows nothing of parallelism, and what makes it spreadable.

Modules are named so that torch's tensor-parallel plans apply, a pipeline stage is a `Decoder` that holds a part of it,
attention and the dispatch to experts go through callables that can be replaced, and every parameter starts from its own
random stream, so that any part of the model starts from the same bits as the whole.
"""

from weft.training.model.attention import Attend, attend_locally
from weft.training.model.decoder import Block, Decoder
from weft.training.model.experts import (
    Dispatch,
    ExpertBalance,
    Experts,
    Load,
    balance_loss,
    carry_loss,
    dispatch_locally,
)
from weft.training.model.rotary import Rotary
from weft.training.model.weights import Start, canonical, full_tensor_of, initialise

__all__ = [
    "Attend",
    "Block",
    "Decoder",
    "Dispatch",
    "ExpertBalance",
    "Experts",
    "Load",
    "Rotary",
    "Start",
    "attend_locally",
    "balance_loss",
    "canonical",
    "carry_loss",
    "dispatch_locally",
    "full_tensor_of",
    "initialise",
]
