"""A stand-in for the controller: a real socket with the real codec, and answers that a test chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from cotenant.controller.system.keys import KeyFile
from cotenant.controller.wire import clients as wire
from cotenant.controller.wire import decode, encode
from tests.building.limits import within_s

Answer = Callable[[Any], Any]


class StandIn:
    """Answers each kind of request with what `answers` holds for it; keeps what it was asked."""

    def __init__(self, path: Path | None = None, key: KeyFile | None = None, port: int | str = "*") -> None:
        """At the path of a socket or, with the key of a controller, at a port of 127.0.0.1."""
        self.answers: dict[type, Answer] = {}
        self.asked: list[Any] = []
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        if key is not None:
            self._router.curve_server = True
            self._router.curve_publickey = key.public.encode()
            self._router.curve_secretkey = key.secret.encode()
        self._router.bind(f"ipc://{path}" if path is not None else f"tcp://127.0.0.1:{port}")
        bound = self._router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        self.endpoint = bound.rstrip(b"\0").decode()
        self._ender = self._context.socket(zmq.PAIR)
        self._ender.bind("inproc://end")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def says(self, kind: type, answer: Any) -> None:
        """A fixed answer, or a function of the request; None: silence. Its `request_id` is filled in."""
        self.answers[kind] = answer if callable(answer) else lambda _request: answer

    def asked_for(self, kind: type) -> list[Any]:
        return [each for each in self.asked if isinstance(each, kind)]

    def _serve(self) -> None:
        end = self._context.socket(zmq.PAIR)
        end.connect("inproc://end")
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(end, zmq.POLLIN)
        while end not in (ready := dict(poller.poll())):
            if self._router in ready:
                who, _mark, frame = self._router.recv_multipart()
                request: wire.Request = decode(frame, wire.Request)
                self.asked.append(request.body)
                reply = self._answer(request)
                if reply is not None:
                    self._router.send_multipart([who, encode(reply)])
        end.close(0)

    def _answer(self, request: wire.Request) -> Any:
        answer = self.answers.get(type(request.body))
        if answer is None:
            return refusal(
                "refused",
                f"the stand-in was not told about {type(request.body).__name__}",
                request.request_id,
            )
        reply = answer(request.body)
        return None if reply is None else msgspec.structs.replace(reply, request_id=request.request_id)

    def close(self) -> None:
        if self._router.closed:
            return
        self._ender.send(b"")
        self._thread.join(within_s(10))
        self._router.close(0)
        self._ender.close(0)
        self._context.term()


def refusal(code: Any, message: str, request_id: int = 0, hint: str = "") -> wire.Failure:
    return wire.Failure(request_id=request_id, code=code, message=message, hint=hint)
