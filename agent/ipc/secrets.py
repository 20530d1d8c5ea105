"""A job's secrets on their way from the agent to its supervisor: in memory that both have open.

Rule: no disk of a host ever holds them. The supervisor keeps them in its memory and puts them into the
environment of the processes that it starts; they are gone with the last of these. An attempt starts once, so
nobody needs them again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cotenant.agent.ipc.files import read_record
from cotenant.agent.ipc.records import ORDER, Order
from cotenant.controller.system.files import write_whole
from cotenant.controller.wire import decode_json

BYTES_MAX: Final = 2 * 1024 * 1024
"""Escaped as JSON, they may be longer than what a submission may hold."""


def without_secrets(order: Order) -> Order:
    """What may be written to disk."""
    return msgspec.structs.replace(order, secrets={})


def kept_in_memory(secrets: Mapping[str, str]) -> int:
    """A descriptor for a child to read them from. The caller closes its copy. Raises OSError."""
    file = os.memfd_create("secrets", os.MFD_CLOEXEC)
    try:
        os.pwrite(file, msgspec.json.encode(dict(secrets)), 0)
    except OSError:
        os.close(file)
        raise
    return file


def taken(order: Order, file: int) -> Order:
    """The order with the secrets of this descriptor, which is closed.

    Raises:
        OSError: it is no descriptor of ours.
        BadMessage: what is in it is not ours.
    """
    try:
        data = os.pread(file, BYTES_MAX + 1, 0)
    finally:
        os.close(file)
    return msgspec.structs.replace(order, secrets=decode_json(data, dict[str, str], bytes_max=BYTES_MAX))


def forgotten_on_disk(folder: Path) -> None:
    """Take out those that an agent of 0.1.0 wrote to an order whose supervisor has read it. The rest stays as
    it is, for what else of that version still has to read it. Raises OSError."""
    path = folder / ORDER
    order = read_record(path, Order)
    if order is not None and order.secrets:
        said: dict[str, msgspec.Raw] = decode_json(path.read_bytes(), dict[str, msgspec.Raw])
        write_whole(path, msgspec.json.format(msgspec.json.encode({**said, "secrets": {}})) + b"\n")
