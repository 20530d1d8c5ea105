"""Any request and any reply, for the side that answers: a client knows which reply it asked for."""

from __future__ import annotations

import msgspec

from cotenant.controller.wire.clients import cluster, past
from cotenant.controller.wire.clients.base import Done, Failure
from cotenant.controller.wire.clients.controllers import ControllersRequest, ControllersView
from cotenant.controller.wire.clients.foresight import ForesightReply, ForesightRequest
from cotenant.controller.wire.clients.jobs import JobReply, JobRequest
from cotenant.controller.wire.clients.notices import NoticeReply, NoticeRequest
from cotenant.controller.wire.clients.policies import PolicyReply, PolicyRequest
from cotenant.controller.wire.clients.reservations import ReservationReply, ReservationRequest
from cotenant.controller.wire.clients.streams import StreamUsed, UseStream
from cotenant.controller.wire.clients.submissions import SnapshotHeld, SnapshotRequest

AnyRequest = (
    JobRequest
    | SnapshotRequest
    | past.AccountingRequest
    | ForesightRequest
    | cluster.ClusterRequest
    | ControllersRequest
    | NoticeRequest
    | PolicyRequest
    | past.TimelineRequest
    | cluster.AllocationRequest
    | ReservationRequest
    | UseStream
)
AnyReply = (
    JobReply
    | SnapshotHeld
    | past.AccountingReply
    | ForesightReply
    | cluster.ClusterReply
    | ControllersView
    | NoticeReply
    | PolicyReply
    | past.TimelineReply
    | cluster.AllocationReply
    | ReservationReply
    | StreamUsed
    | Done
    | Failure
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    request_id: int
    body: AnyRequest
