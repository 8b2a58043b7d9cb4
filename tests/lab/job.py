"""A small job in a process of its own, because ranks have the environment that their first parent began with."""

import json
import sys

from weft.training.launch.ranks import Ranks

if __name__ == "__main__":
    sys.stdout.write(json.dumps(Ranks("tests.transport.ranks:ddp_somewhere", 2, {"steps": 6}, backend="mrc").run()))
