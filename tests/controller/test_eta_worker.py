"""When jobs end is found out in a child process, about the newest state, and never twice at a time."""

from __future__ import annotations

import asyncio

import msgspec

from cotenant.controller.engine import EtaAnswer, EtaBook, EtaQuestion, question_of
from cotenant.controller.workers import EtaWorker
from tests.controller.building import Desk


class Asking:
    """A desk that is asked about, and what came back."""

    def __init__(
        self, share: float = 1.0, lasts_s_min: float = 10.0, expected_s: float = 50.0, load_s: float = 5.0
    ) -> None:
        self.desk = Desk("srtf")
        self.desk.submit(1, expected_s=expected_s, load_s=load_s)
        self.questions = 0
        self.answers: asyncio.Queue[EtaAnswer] = asyncio.Queue()
        self.worker = EtaWorker(self.question, self.answers.put_nowait, share, lasts_s_min)

    def question(self) -> EtaQuestion:
        self.questions += 1
        return question_of(self.desk.engine, EtaBook(), seed=1, count=2)


def test_a_change_is_asked_about_in_a_child_and_the_next_one_after_it() -> None:
    async def main() -> None:
        asking = Asking()
        asking.worker.changed()
        first = await asking.answers.get()
        asking.desk.submit(2, expected_s=10.0)
        asking.worker.changed()
        asking.worker.changed()
        second = await asking.answers.get()
        await asking.worker.close()
        assert [[eta.job_id for eta in each.etas] for each in (first, second)] == [["1"], ["1", "2"]]
        assert asking.questions == 2
        assert first.cpu_s > 0.0

    asyncio.run(main())


def test_a_child_that_dies_is_started_again() -> None:
    async def main() -> None:
        asking = Asking()
        asking.worker.changed()
        await asking.answers.get()
        child = asking.worker._child.process
        assert child is not None
        child.kill()
        await child.wait()
        answer = await asking.worker._answered(msgspec.structs.replace(asking.question(), seed=2))
        assert "died" in answer.error
        again = await asking.worker._answered(msgspec.structs.replace(asking.question(), seed=2))
        assert again.error == ""
        await asking.worker.close()

    asyncio.run(main())


def test_a_job_that_goes_on_after_its_time_is_asked_about_without_a_change() -> None:
    async def main() -> None:
        asking = Asking(lasts_s_min=0.0, expected_s=0.1, load_s=0.0)
        asking.worker.changed()
        for _ in range(3):
            await asking.answers.get()
        await asking.worker.close()

    asyncio.run(main())


def test_a_policy_that_fails_in_a_roll_out_is_an_answer() -> None:
    async def main() -> None:
        asking = Asking()
        question = asking.question()
        answer = await asking.worker._answered(msgspec.structs.replace(question, image=b"no image"))
        await asking.worker.close()
        assert answer.error
        assert answer.etas == []

    asyncio.run(main())


def test_without_a_share_nobody_works() -> None:
    async def main() -> None:
        asking = Asking(share=0.0)
        asking.worker.changed()
        await asking.worker.close()
        assert asking.questions == 0

    asyncio.run(main())
