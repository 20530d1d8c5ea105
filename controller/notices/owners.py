"""Tells whoever holds a device outside of jobs that others could use it."""

from __future__ import annotations

import re
from typing import Final

from cotenant.controller.api import Denied
from cotenant.controller.domain import FOREIGN, DeviceId, texts
from cotenant.controller.notices.notifier import Notifier
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import clients as wire

AGAIN_S: Final = 3600.0
"""Between two messages about one device."""
_OWNER: Final = re.compile(re.escape(FOREIGN) + r"pid \d+ of (\S{1,64}) \(")


class OwnerRequests:
    """Answers `cotenant notify owner`."""

    def __init__(self, core: Core, notifier: Notifier) -> None:
        self._core, self._notifier = core, notifier
        self._told_s: dict[DeviceId, float] = {}

    def tell(self, request_id: int, request: wire.TellOwner, who: Identity) -> wire.NoticeReply:
        """Tells the owner of the first process on the device. Raises Denied: nobody is to be told."""
        device = self._core.state.engine.ledger.devices.get(request.device_id)
        if device is None:
            raise Denied("not-found", f"no device {request.device_id}", "`cotenant nodes` lists them")
        found = _OWNER.match(device.note)
        if found is None:
            why = device.note or "it is offered to jobs"
            raise Denied("refused", f"nobody is known who holds {request.device_id} outside of jobs: {why}")
        now_s = self._core.clock.now_s()
        if now_s - self._told_s.get(device.device_id, -AGAIN_S) < AGAIN_S:
            raise Denied("refused", f"{found[1]} has been told of {device.device_id} within the last hour")
        subject = f"others wait for {device.device_id}, which a process of yours holds"
        lines = (texts.one_line(device.note), f"{who.name} asks you to end it, or to run it as a job.")
        notice = self._notifier.tell(found[1], "owner", subject, "\n".join(lines))
        if not notice.ways:
            raise Denied("refused", f"there is no way to tell {found[1]}", "ask an admin: notify.mail_domain")
        self._told_s[device.device_id] = now_s
        return wire.NoticeReply(request_id=request_id, notice_id=notice.notice_id, ways=notice.ways)
