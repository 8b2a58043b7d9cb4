"""The console's HTTP interface, route by route: what `/api/openapi.json` describes and tests attack."""

from typing import Any

from weft.web.console.what_if_answers import WhatIfSpec
from weft.web.http.openapi import Operation, Parameter

TITLE = ("weft console", "What the pages of weft ui ask for. Every route wants the console's token.")
_OBJECT: dict[str, Any] = {"type": "object"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 200}
_RUN = Parameter("run", "path", _NAME, "Id of a run, as the list of runs has it.")
_SITE = Parameter("site", "query", _NAME, "A site that the console lists.")
_PART = Parameter("down", "query", {"type": "string", "maxLength": 4000}, "Failed parts, with commas between them.")
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**7}
_JOB = Parameter("job", "path", _NAME, "Name of a job of the cluster.")
_NODE = Parameter("node", "path", _NAME, "Name of a node of the cluster.")
_ALWAYS = (403,)
_CHANGES = (404, 503)

OPERATIONS = (
    Operation("GET", "/api/openapi.json", "document", "Describe this interface.", _OBJECT, always=_ALWAYS),
    Operation("GET", "/api/runs", "runs_listed", "List runs, newest first.",
              {"type": "object", "required": ["runs"]}, always=_ALWAYS),
    Operation("GET", "/api/runs/{run}", "run", "Show one run: columns of its steps, incidents, GPU-seconds.", _OBJECT,
              (_RUN,), refusals=(404,), always=_ALWAYS),
    Operation("GET", "/api/runs/{run}/predicted", "run_predicted", "Predict the run's step on a site.", _OBJECT,
              (_RUN, _SITE), refusals=(404,), always=_ALWAYS),
    Operation("GET", "/api/runs/{run}/live", "run_live", "Stream what the run writes (server-sent events).",
              {"type": "string"}, (_RUN,), refusals=(404,), always=_ALWAYS, media="text/event-stream"),
    Operation("GET", "/api/choices", "choices", "List sites, jobs and changes that can be asked about.", _OBJECT,
              always=_ALWAYS),
    Operation("POST", "/api/what-if", "what_if", "Rehearse a job on a site after changes.", _OBJECT, body=WhatIfSpec,
              always=_ALWAYS),
    Operation("GET", "/api/fabric", "fabric", "Show the sizes of a site's fabric, and scenarios with faults.", _OBJECT,
              (_SITE,), always=_ALWAYS),
    Operation("GET", "/api/fabric/affected", "fabric_affected", "Say which NICs and links failed parts take out.",
              _OBJECT, (_SITE, _PART), always=_ALWAYS),
    Operation("GET", "/api/fabric/path", "fabric_path", "Follow a packet through the static tables.", _OBJECT,
              (_SITE, Parameter("src", "query", _NUMBER, "Sending NIC."),
               Parameter("dst", "query", _NUMBER, "Receiving NIC."),
               Parameter("ev", "query", {"type": "string", "maxLength": 40}, "Entropy value, or plane and uplinks."),
               _PART), always=_ALWAYS),
    Operation("GET", "/api/cluster", "cluster", "Show the cluster of this machine and its decision log.", _OBJECT,
              always=_ALWAYS),
    Operation("POST", "/api/cluster/jobs/{job}/cancel", "job_cancel", "Cancel a job.", _OBJECT, (_JOB,),
              refusals=_CHANGES, always=_ALWAYS),
    Operation("POST", "/api/cluster/nodes/{node}/drain", "node_drain", "Cordon a node: nothing new starts.", _OBJECT,
              (_NODE,), refusals=_CHANGES, always=_ALWAYS),
    Operation("POST", "/api/cluster/nodes/{node}/undrain", "node_undrain", "Return a node to service.", _OBJECT,
              (_NODE,), refusals=_CHANGES, always=_ALWAYS),
    Operation("GET", "/metrics", "metrics", "Give metrics of runs and of the cluster to Prometheus.",
              {"type": "string"}, always=_ALWAYS, media="text/plain"),
)  # fmt: skip
"""Every route, in the order of the document."""
