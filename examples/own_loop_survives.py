"""The loop of `own_loop.py` on three ranks that may be killed: five more lines, the same bits.

Run it (`python examples/own_loop_survives.py`), kill one of its processes (`kill -9`), and compare the weights.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

import weft


def main(job: str = "own-loop", folder: str = "runs") -> dict[str, object]:
    """Train a small recurrent model on bytes and return what it came to."""
    run = weft.start(job, folder=folder, resume=True)
    torch.manual_seed(run.job.seed)
    model = nn.ModuleDict(
        {"in": nn.Embedding(256, 64), "rnn": nn.GRU(64, 64, batch_first=True), "out": nn.Linear(64, 256)}
    )
    optimizer = torch.optim.AdamW(model.to(run.device).parameters())
    run.attach(model, optimizer)
    for step in run.steps():
        for tokens in step.micro_batches():
            logits = model["out"](model["rnn"](model["in"](tokens[:, :-1]))[0])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            step.add(loss)
        step.reduce()
        optimizer.step()
        run.finish(step)
    return run.close()


if __name__ == "__main__":
    job, folder = sys.argv[1:] or ("own-loop", "runs")
    result = weft.survive(main, job, folder, ranks=3, resume=True)
    for recovery in result["recoveries"]:
        sys.stdout.write(f"survived: {recovery}\n")
    sys.stdout.write(f"{result}\n")
