"""What a pod's program knows of its gang, under the names that weft, torch and torchrun read. Pure."""

from collections.abc import Mapping
from typing import Any


def variables_of(about: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of one place of a gang.

    No GPU numbers: the device plugin gives a container its GPUs, and inside they count from 0.
    """
    known = {
        "WEFT_JOB": about["job"], "WEFT_NAMESPACE": about["space"], "WEFT_JOB_UID": about["uid"],
        "WEFT_ATTEMPT": about["attempt"],
        "WEFT_NODE": about["node"], "WEFT_NODE_RANK": about["place"], "WEFT_NODES": about["nodes"],
        "WEFT_GPUS_PER_NODE": about["gpus"],
        # The same under the names that torch's own programs read.
        "MASTER_ADDR": about["address"], "MASTER_PORT": about["port"], "NODE_RANK": about["place"],
        "WORLD_SIZE": about["gpus"] * about["nodes"],
        # torchrun takes each of its options from a variable of this prefix, so that its command line stays unchanged.
        "PET_NNODES": about["nodes"], "PET_NODE_RANK": about["place"], "PET_NPROC_PER_NODE": about["gpus"],
        "PET_MASTER_ADDR": about["address"], "PET_MASTER_PORT": about["port"],
    }  # fmt: skip
    return {name: str(value) for name, value in known.items()}
