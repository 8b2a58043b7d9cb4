"""Functions that ranks run in tests of the launcher."""
import time

import torch
import torch.distributed as dist


def total(reporter, add):
    tensor = torch.tensor([dist.get_rank() + add])
    dist.all_reduce(tensor)
    reporter.send("note", dist.get_rank())
    return int(tensor)
