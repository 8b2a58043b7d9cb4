"""An example for the help of every command, by the words of the command."""

_EXAMPLES = """
weft design gb200-8x100g-131k
weft explain spraying gb200-8x100g-131k
weft simulate htsim-permutation --transport mrc,roce
weft fabric path gb200-8x100g-131k --src 0 --dst 131071 --ev 5
weft fabric table laptop --switch t0-p0-i0
weft fabric import links.csv --hosts name:gpu*
weft fabric export laptop --format cabling
weft fabric dissector --out mrc.lua
weft site list
weft site show laptop
weft site measure here.toml --ranks 4
weft calibrate train.log --job gpt-1t --site gb200-8x100g-131k --out mine.toml
weft plan gpt-1t gb200-8x100g-131k --what-if planes=4
weft plan compare gpt3-175b llama3-405b --site gb200-4x200g-32k
weft rehearse gpt-1t gb200-8x100g-131k --html page.html
weft campaign gb200-8x100g-131k --seeds 4
weft campaign compare spares no-spares --site gb200-8x100g-131k
weft campaign fit parts.csv --component gpu
weft campaign replay-diary diary.csv --site gb200-8x100g-131k
weft capacity --plot capacity.svg
weft serve-plan llama3-405b --site gb200-4x200g-32k
weft scale fit examples/points.csv
weft scale predict examples/points.csv --params 3e6 --tokens 60e6
weft scale optimal examples/points.csv --flops 1e21
weft scale ladder tiny-gpt
weft doctor traces/ train.log
weft train tiny-gpt --set steps=50
weft run --checkpoints ckpt -- torchrun --nproc-per-node 2 train.py
weft ui runs
weft top
weft export tiny-gpt-1 --to folder
weft runs
weft runs show tiny-gpt-1
weft runs compare tiny-gpt-1 tiny-gpt-2
weft runs incidents tiny-gpt-2
weft cluster up --nodes 4
weft cluster down --jobs
weft cluster status
weft cluster replay trace.csv --policy weft,fifo
weft cluster generate trace.csv --jobs 1000 --seed 7
weft cluster trace cluster_log.csv trace.csv
weft cluster install --print
weft cluster control --on production
weft cluster act --on kind-weft --nodes 100
weft submit --sweep lr=1e-4,3e-4 -- python experiment.py
weft jobs --watch
weft logs --follow train-1
weft cancel train-1
weft why train-1
weft nodes --watch
weft nodes test preflight
weft nodes programs
weft health agent --once
weft health catalogue
weft drain n2 --reason fan
weft undrain n2
weft schema site
weft check site.toml job.toml
weft completion zsh
weft compile
weft lab up --hosts 4 --planes 4
weft lab status
weft lab exec 0 -- ip -6 route
weft lab cut link0-p0-i0
weft lab heal
weft lab blackhole t1-p0-i1
weft lab loss link0-p0-i0 1%
weft lab slow link0-p0-i0 100Mb/s
weft lab flap link0-p0-i0 --times 3
weft lab map
weft lab capture link0-p0-i0 --out link.pcapng
weft lab ping --from 0 --to 3
weft lab bench --rival tcp --fault "cut link0-p0-i0"
weft lab down
"""


def example_of(words: str) -> str | None:
    """Return the example of a command, the longest that begins with its words; none where there is none."""
    lines = [line for line in _EXAMPLES.strip().splitlines() if f"{line} ".startswith(f"weft {words} ")]
    return lines[0] if lines else None
