"""What the fork server imports once, so that a rank starts in a tenth of a second.

torch itself, and what it would import late: optimizers, DTensor, FSDP2, pipelines, checkpoints. A backward pass must
never run here: autograd starts threads that do not survive a fork.
"""

import torch
import torch.distributed.checkpoint
import torch.distributed.device_mesh
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel

import weft.training.train  # noqa: F401 - what most ranks run


def _warm() -> None:
    """Take one optimizer step on made-up gradients: that is when AdamW imports the rest of itself.

    Where there are GPUs a step asks the CUDA runtime for them, and no process forked after that could use one.
    """
    if torch.cuda.is_available():
        return
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    torch.optim.AdamW([weight]).step()


_warm()
