"""Traces that have names: those that come with cotenant, and those that it can generate.

Rule: this imports nothing, so that they can be listed without the simulator, which reads and generates them.
"""

from typing import Final

PHILLY_VCS: Final = (
    "0e4a51",
    "103959",
    "51b7ef",
    "6214e9",
    "6c71a0",
    "b436b2",
    "e13805",
    "ed69ec",
    "ee9e8c",
)
NAMES: Final = ("philly", *(f"philly/{vc}" for vc in PHILLY_VCS))

SYNTH: Final = "synth:"
"""Before the name of one that is generated."""
TITLES: Final = {
    "earth": "Helios Earth (Lazer, Table 1)",
    "saturn": "Helios Saturn (Lazer, Table 1)",
    "uranus": "Helios Uranus (Lazer, Table 1)",
    "philly": "Philly (Jeon et al., ATC '19; two derived job tables)",
}
"""What each is generated like."""


def names_beginning(text: str) -> list[str]:
    """The names of traces that come with cotenant and begin so."""
    return [name for name in NAMES if name.startswith(text)]
