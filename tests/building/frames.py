"""A supervisor's other end for a test that may block: messages on a socket, one by one.

Rule: it makes and takes frames with `agent/ipc` alone, so that both ends are the product's.
"""

from __future__ import annotations

import socket
from typing import Any

from cotenant.agent.ipc.channel import Deframer, frame_message


def send_message(connection: socket.socket, message: object) -> None:
    connection.sendall(frame_message(message))


def receive_message(connection: socket.socket, into: Any) -> Any:
    """The next message; None at the end of the stream, or when it breaks. Takes no byte of the one after it.

    Raises:
        BadMessage: an oversized or undecodable frame.
        TimeoutError: the socket's time limit passed.
    """
    frames = Deframer(into)
    while True:
        try:
            part = connection.recv(1)
        except ConnectionError:
            return None
        if not part:
            return None
        if messages := frames.feed(part):
            return messages[0]
