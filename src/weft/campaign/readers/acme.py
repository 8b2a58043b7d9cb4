"""Shanghai AI Lab's Acme traces: `trace_seren.csv` and `trace_kalos.csv` (github.com/InternLM/AcmeTrace).

The columns of Helios without virtual clusters; a job's team is its user.
"""

from weft.campaign.readers.helios import COLUMNS, HeliosReader


class AcmeReader(HeliosReader):
    """Reads one line for each job."""

    name = "Acme"
    team_column = "user"
    columns = COLUMNS | {"type", "gpu_time"}
