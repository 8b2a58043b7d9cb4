"""Lets `python -m weft` do what `weft` does."""

from weft.cli.main import run

if __name__ == "__main__":
    run()
