"""What crosses a process boundary: typed messages and their bounded encoding.

Rule: payloads are the domain's own types; this package adds only envelopes and limits.
"""

from typing import TYPE_CHECKING, Final

from cotenant.controller.faces import lazy_face

if TYPE_CHECKING:
    from cotenant.controller.wire.agents import *  # noqa: F403
    from cotenant.controller.wire.children import *  # noqa: F403
    from cotenant.controller.wire.codec import *  # noqa: F403
    from cotenant.controller.wire.entrance import *  # noqa: F403
    from cotenant.controller.wire.route import *  # noqa: F403
    from cotenant.controller.wire.streams import *  # noqa: F403
    from cotenant.controller.wire.times import *  # noqa: F403
    from cotenant.controller.wire.views import *  # noqa: F403

# fmt: off
_HOMES: Final = {
    "agents": (
        "AskStream", "AttemptProgress", "BoundStanding", "CommandAck", "CommandDelivery", "FetchSnapshot",
        "FromAgent", "GangRelay", "Heartbeat", "Hello", "HostRefused", "IdleReading", "LogReply",
        "NotFollowed", "NotLeading", "ReadLog", "Renew", "Report", "ReportAck", "SnapshotPart",
        "StreamReply", "TellJob", "ToAgent", "Welcome",
    ),
    "children": (
        "ComputeQuestion", "ComputeResult", "Otherwise", "Payload", "ShadowAnswer", "ShadowQuestion",
        "ShadowTally",
    ),
    "codec": (
        "MESSAGE_BYTES_MAX", "UNKNOWN_REQUEST", "WIRE_VERSION", "BadMessage", "Json", "WrongVersion",
        "decode", "decode_json", "decode_text", "encode", "pack", "refusal", "request_in", "unpack",
        "unpack_struct",
    ),
    "entrance": (
        "FROM_AGENTS", "FROM_CLIENTS", "JOBS_MAX", "LAUNCH_BYTES_MAX", "LIMITS", "SECRETS_BYTES_MAX",
        "SNAPSHOT_PART_BYTES_MAX", "Inadmissible", "admit",
    ),
    "route": ("Route",),
    "streams": (
        "PIECE_BYTES", "SIZE_VARIABLE", "WINDOW_BYTES", "ClientStream", "HostStream", "SentBytes",
        "StreamAsk", "StreamTold",
    ),
    "times": ("Utc", "utc", "wall_s"),
    "views": (
        "InterruptionView", "PairTotals", "ProfileView", "PromiseView", "ReportView", "SharingTotals",
        "SharingView", "StepTimeView", "ThroughputView", "profile_view", "throughput_view",
    ),
}
# fmt: on
_MODULES: Final = ("agents", "clients", "codec")
if not TYPE_CHECKING:
    __all__ = [*_MODULES, *(name for names in _HOMES.values() for name in names)]
    __getattr__ = lazy_face(globals(), _HOMES)
