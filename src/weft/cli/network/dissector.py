"""`weft fabric dissector`: MRC for Wireshark, made from the header tables."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from weft.cli.output import console, writing, written_to


def dissector(
    *,
    out: Annotated[
        Path | None,
        Parameter(name=("--out", "-o"), help="File to write; default: print it."),
        written_to("--out", ".lua"),
    ] = None,
) -> None:
    """Print the dissector of MRC for Wireshark and tshark: weft fabric dissector -o mrc.lua.

    tshark -X lua_script:mrc.lua -r F.pcapng reads a capture with it.
    """
    from weft.mrc.wire import dissector as made

    text = made.dissector()
    if out is None:
        console().file.write(text)
        return
    with writing(out) as part:
        part.write_text(text)
    hint = f"{out}: copy it to Wireshark's folder of Lua plugins, or run tshark -X lua_script:{out}"
    console().print(hint, markup=False, soft_wrap=True)
