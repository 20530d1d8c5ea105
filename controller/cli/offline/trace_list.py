"""`cotenant sim trace list`. Rule: it imports neither the simulator nor numpy, so that it answers at once."""

from __future__ import annotations

from typing import Final, NamedTuple

from cotenant.controller.cli.frame.output import FormFlag, Listing, show_listing
from cotenant.controller.present.tables import Column
from cotenant.controller.trace_names import NAMES, SYNTH, TITLES


class KnownTrace(NamedTuple):
    """A trace that can be named without a file."""

    name: str
    synthetic: bool
    about: str


def sim_trace_list(form: FormFlag = "table") -> None:
    """The traces that come with cotenant, and those it can generate."""
    real = [KnownTrace(name, False, _about_bundled(name)) for name in NAMES]
    made = [
        KnownTrace(
            f"{SYNTH}{name}", True, f"SYNTHETIC: generated like {title}; {SYNTH}{name}:JOBS for so many"
        )
        for name, title in TITLES.items()
    ]
    listing = Listing(
        noun="trace",
        as_json=lambda row: {"trace": row.name, "synthetic": row.synthetic, "about": row.about},
        identity=lambda row: row.name,
        columns=LIST_COLUMNS,
    )
    show_listing(listing.fill([*real, *made]), form)


LIST_COLUMNS: Final = (
    Column("TRACE", lambda row: row.name),
    Column("ABOUT", lambda row: row.about, wraps=True),
)


def _about_bundled(name: str) -> str:
    vc = name.partition("/")[2]
    if not vc:
        return "Microsoft Philly 2017, twelve VCs on one clock (durations halved by its source)"
    return f"Microsoft Philly 2017, virtual cluster {vc}"
