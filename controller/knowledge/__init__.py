"""What is remembered of jobs beyond their end: which are alike, how long they took, profiles by command,
which pairs share well, and which kinds resume as they were left.

Rule: pure values; the engine keeps them, the journal brings them back.
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.faces import lazy_face

if TYPE_CHECKING:
    from cotenant.controller.knowledge.families import *  # noqa: F403
    from cotenant.controller.knowledge.lifetimes import *  # noqa: F403
    from cotenant.controller.knowledge.pairs import *  # noqa: F403
    from cotenant.controller.knowledge.profiles import *  # noqa: F403
    from cotenant.controller.knowledge.resumes import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "families": (
        "Family", "family_of", "runs_in_words", "like_key", "plain_words", "profile_of_like", "program_of",
    ),
    "lifetimes": ("left_s",),
    "pairs": (
        "APART_S", "APART_S_MAX", "ENTRIES_MAX", "LOSS_MIN", "OBSERVATIONS", "Observed", "PairSeen",
        "PairModel", "PairTable", "PairVerdict", "is_beyond", "kind_of", "loses", "public_kind", "signature",
    ),
    "profiles": (
        "COMMAND_CHARACTERS_MAX", "KEY_CHARACTERS", "Profiles", "StoredProfile", "base_key", "beginning",
        "key_of",
    ),
    "resumes": ("KINDS_MAX", "Resumes"),
}
# fmt: on
_MODULES: Final = ("pairs",)
if not TYPE_CHECKING:
    __all__ = [*_MODULES, *(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
