"""Sends a packed tree (`--snapshot`) to the controller, in parts and only where the controller lacks it.

Rule: one part is on its way at a time, and the controller says from where to go on; so a connection that was
lost or a controller that was started again costs one part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cotenant.controller.domain import job_spec
from cotenant.controller.present.snapshots import TransferProgress
from cotenant.controller.system import paths
from cotenant.controller.wire import SNAPSHOT_PART_BYTES_MAX
from cotenant.controller.wire import clients as wire

PATIENCE_S: Final = 60.0
"""How long the controller may refuse a part because too much comes at once, or check the whole."""
LOOK_S: Final = 0.02
LOOK_S_MAX: Final = 1.0
TRIES_MAX: Final = 2
"""A tree that came damaged is sent once more."""

AsksController = Callable[[wire.Question[Any]], wire.Reply]


def send_tree(tree: job_spec.CodeSnapshot, ask: AsksController) -> wire.Failure | None:
    """Sends a packed tree unless the controller has it. Returns why it could not, or None."""
    packed, progress = paths.packed_trees() / tree.sha256, TransferProgress("uploading", tree.size_bytes)
    asking = wire.AskSnapshot(sha256=tree.sha256, size_bytes=tree.size_bytes)
    reply, tries = _ask_patiently(ask, asking), 0
    while isinstance(reply, wire.SnapshotHeld) and not reply.is_complete:
        tries += reply.offset == 0
        if tries > TRIES_MAX:
            packed.unlink(missing_ok=True)
            return _not_sent("it came damaged twice")
        try:
            part = _read_part(packed, reply.offset)
        except OSError as error:
            reply = _ask_patiently(ask, asking)  # Another submission of this tree may have sent it.
            if isinstance(reply, wire.SnapshotHeld) and not reply.is_complete:
                return _not_sent(f"{packed}: {error.strerror}")
            continue
        put = wire.PutSnapshot(sha256=tree.sha256, size_bytes=tree.size_bytes, offset=reply.offset, data=part)
        reply = _ask_patiently(ask, put)
        progress.note(reply.offset if isinstance(reply, wire.SnapshotHeld) else 0)
        if isinstance(reply, wire.SnapshotHeld) and reply.offset == tree.size_bytes:
            reply = _ask_patiently(ask, asking)
    progress.end()
    if isinstance(reply, wire.Failure):
        return reply
    packed.unlink(missing_ok=True)
    return None


def _ask_patiently(ask: AsksController, question: wire.AskSnapshot | wire.PutSnapshot) -> wire.Reply:
    """The reply to a part that the controller has time for, or to a question once it has checked the tree."""
    until_s, look_s = time.monotonic() + PATIENCE_S, LOOK_S
    while True:
        reply = ask(question)
        if isinstance(question, wire.AskSnapshot):
            waits = isinstance(reply, wire.SnapshotHeld) and not reply.is_complete
            waits = waits and getattr(reply, "offset", 0) == question.size_bytes
        else:
            waits = isinstance(reply, wire.Failure) and reply.code == "refused"
        if not waits:
            return reply
        if time.monotonic() > until_s:
            return _not_sent(f"the controller was busy for {PATIENCE_S:g} s")
        time.sleep(look_s)
        look_s = min(2 * look_s, LOOK_S_MAX)


def _read_part(packed: Path, offset: int) -> bytes:
    with packed.open("rb") as file:
        file.seek(offset)
        return file.read(SNAPSHOT_PART_BYTES_MAX)


def _not_sent(why: str) -> wire.Failure:
    return wire.Failure(
        request_id=0, code="refused", message=f"the snapshot was not sent: {why}", hint="submit again"
    )
