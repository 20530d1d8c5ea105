"""A fork server runs its user's imports, so whatever it says or prints is foreign: at worst its jobs start
cold."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cotenant.agent.daemon.warm_starts import SpareSupervisor, WarmStarts
from cotenant.agent.warm.pool import ColdRunTold, Pool, ServerKind
from cotenant.agent.warm.spawn import ForkServer
from tests.building.limits import within_s

SERVER = """\
#!{python}
import os, signal, socket, sys
talk = socket.socket(fileno=int(sys.argv[3]))
{words}
signal.pause()
"""


class Scene:
    """One fork server that does as it likes."""

    def __init__(self, folder: Path, words: str) -> None:
        program = folder / "python3"
        program.write_text(SERVER.format(python=sys.executable, words=words))
        program.chmod(0o755)
        self.lines: list[str] = []
        self.pool = Pool(memory_mib=100_000.0, share=0.5)
        self.warm = WarmStarts(
            self.pool, folder=folder / "sockets", attempts=lambda job, attempt: folder,
            spare=SpareSupervisor(), log=self.lines.append,
        )  # fmt: skip
        self.kind = ServerKind(
            interpreter=str(program), options=(), uid=os.geteuid(), gid=os.getegid(), groups=(), env={}
        )
        self.folder = folder

    @property
    def server(self) -> ForkServer | None:
        return self.warm._servers.get(self.kind.key)

    def play(self, reached: Callable[[], bool]) -> None:
        async def story() -> None:
            self.warm._handle(ColdRunTold(kind=self.kind, modules=("json",)), self.folder)
            assert self.server is not None
            process = self.server._process
            try:
                async with asyncio.timeout(within_s(60.0)):
                    while not reached():  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            finally:
                self.warm.leave()
                self.warm._spare.drop()
                process.wait(within_s(60.0))

        asyncio.run(story())


def refused(scene: Scene) -> bool:
    return scene.kind.key in scene.pool._refused


WORDS = {
    "a code that nobody knows": (
        """talk.sendall(b'{"m": "refused", "code": "?%s"}\\n')""",
        "?",
    ),
    "a word too many": ("""talk.sendall(b'{"m": "evil"}\\n')""", "gone"),
    "no JSON": ("talk.sendall(b'evil\\n')", "gone"),
    "nested": ("talk.sendall(b'[' * 9000 + b'\\n')", "gone"),
    "another type": ("""talk.sendall(b'{"m": 3}\\n')""", "gone"),
    "long": (
        """talk.sendall(b'{"m": "refused", "code": "%s", "detail": "%s"}\\n' % (b"c" * 9000, b"d" * 9000))""",
        "ccc",
    ),
}


@pytest.mark.parametrize(("words", "code"), WORDS.values(), ids=WORDS.keys())
def test_odd_words_refuse_its_jobs_a_warm_start(tmp_path: Path, words: str, code: str) -> None:
    scene = Scene(tmp_path, words)
    scene.play(lambda: refused(scene))
    told, detail = scene.pool._refused[scene.kind.key]
    assert told.startswith(code) and len(told) <= 40 and len(detail) <= 160
    assert scene.server is None


def test_one_that_is_ready_a_thousand_times_is_told_once(tmp_path: Path) -> None:
    words = """for _ in range(1000): talk.send(b'{"m": "ready"}\\n')\ntalk.close()"""
    scene = Scene(tmp_path, words)
    scene.play(lambda: scene.server is None)
    assert sum("is ready" in line for line in scene.lines) == 1


def test_one_that_closes_its_output_is_not_looked_at_again_and_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "os.close(1); os.close(2)")

    def unwatched() -> bool:
        server = scene.server
        assert server is not None
        return server.output not in {key.fd for key in watched()}

    def watched() -> list[Any]:
        selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        return list(selector.get_map().values())

    scene.play(unwatched)


def test_a_mistake_of_ours_about_one_server_is_not_more_than_that(tmp_path: Path) -> None:
    scene = Scene(tmp_path, """talk.sendall(b'{"m": "ready"}\\n')""")

    def broken(line: str) -> None:
        scene.lines.append(line)
        if "is ready" in line:
            raise RecursionError

    scene.warm._log = broken
    scene.play(lambda: refused(scene))
    assert scene.server is None
