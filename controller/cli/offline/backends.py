"""Where a long computation runs: flags of the verbs that compute. Imports nothing that computes."""

from __future__ import annotations

from typing import Annotated, Literal

from cotenant.controller.cli.frame.command import option

BackendFlag = Annotated[
    Literal["processes", "dask", "ray"],
    option("--backend", metavar="processes|dask|ray", help="Where it is computed: here, or on a cluster."),
]
AddressFlag = Annotated[
    str, option("--address", metavar="URL", help="Of dask's scheduler or Ray's head; default: own one.")
]
WorkersFlag = Annotated[
    int | None,
    option("--workers", metavar="N", min=1, max=1_024, help="Processes (default: one per core)."),
]
