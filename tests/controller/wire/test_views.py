"""Times of views are texts that come from outside: what is none is no message."""

from __future__ import annotations

import msgspec
import pytest

from cotenant.controller.wire import clients
from cotenant.controller.wire.codec import BadMessage, decode, encode
from cotenant.controller.wire.times import utc, wall_s

NODES = clients.Nodes(request_id=1, nodes=(), now=utc(1_763_629_200.0))


@pytest.mark.parametrize("at_s", [0.0, 0.001, 951_782_399.999, 1_763_629_200.125, 4_102_444_800.0])
def test_a_time_is_read_as_it_was_written(at_s: float) -> None:
    assert wall_s(utc(at_s)) == pytest.approx(at_s, abs=1e-6)
    assert utc(wall_s(utc(at_s))) == utc(at_s)
    assert utc(None) is None and wall_s(None) is None


@pytest.mark.parametrize(
    "said",
    [
        "", "now", "2025-11-20", "2025-11-20T09:00:00Z", "2025-13-20T09:00:00.000Z",
        "0000-01-01T09:00:00.000Z",
        "2025-11-20T09:00:00.000Z\n", "2025-11-20T09:00:00.000Z\x1b[31m", "٢٠٢٥-11-20T09:00:00.000Z",
    ],
)  # fmt: skip
def test_what_is_no_time_is_no_message(said: str) -> None:
    frame = encode(msgspec.structs.replace(NODES, now=said))
    with pytest.raises(BadMessage, match="now"):
        decode(frame, clients.AnyReply)
