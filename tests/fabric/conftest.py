"""Random small fabrics for the properties of this folder: `st.from_type(FabricSpec)` draws one."""

from typing import Any

from hypothesis import strategies as st

from weft.specs import load_site
from weft.specs.fabric import FabricSpec, clos_capacity

RATIOS = ("1:1", "2:1", "3:1", "1:2")
MOST_GPUS = {1: 8, 2: 24, 3: 40}


@st.composite
def fabric_specs(draw: Any) -> FabricSpec:
    """Draw a fabric of up to 40 NICs: any tiers, planes, radix, ratio, build-out, cable and optic width."""
    tiers = draw(st.sampled_from((2, 3, 2, 3, 1)))
    radix = draw(st.sampled_from((4, 8, 2, 6)))
    fitting = [ratio for ratio in RATIOS if radix % sum(int(part) for part in ratio.split(":")) == 0]
    ratio = draw(st.sampled_from(fitting))
    down, up = (int(part) for part in ratio.split(":"))
    below = radix if tiers == 1 else radix * down // (down + up)
    most = min(clos_capacity(tiers, radix, (down, up)), max(MOST_GPUS[tiers], 2 * below))
    # Drawn by first-tier switches, so that paths over every tier and bundles are as likely as lonely NICs.
    switches = draw(st.sampled_from(range(-(-most // below), 0, -1)))
    gpus = min(most, switches * below - draw(st.integers(0, below - 1)))
    planes = draw(st.integers(1, 4))
    cable = {"length": "1 m"}
    written = load_site("laptop").fabric.as_written()
    written |= {
        "gpus": gpus,
        "planes": planes,
        "port_rate": "100 Gb/s",
        "nic_rate": f"{100 * planes} Gb/s",
        "tiers": tiers,
        "radix": radix,
        "oversubscription": ratio,
        "build": draw(st.sampled_from(("compact", "growable"))),
        "links": {
            stage: {**cable, "medium": draw(st.sampled_from(("optical", "copper")))}
            for stage in ("nic_t0", "t0_t1", "t1_t2")
        },
    }
    parts = written["parts"]
    parts["switch"]["capacity"] = f"{100 * radix} Gb/s"
    parts["nic"]["rate"] = written["nic_rate"]
    parts["optic"]["rate"] = f"{draw(st.sampled_from((50, 100, 200, 300, 800)))} Gb/s"
    return FabricSpec.model_validate(written)


st.register_type_strategy(FabricSpec, fabric_specs())
