"""When jobs end is found out in a child process, about the newest state, and never twice at a time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from subprocess import PIPE

import msgspec

from cotenant.controller.domain import JobId
from cotenant.controller.history import EtaAnswer, EtaBook, EtaQuestion, LengthClaim, question_of
from cotenant.controller.workers import EtaWorker
from tests.building.limits import within_s
from tests.controller.building import Desk


class Asking:
    """A desk that is asked about, and what came back."""

    def __init__(
        self, share: float = 1.0, lasts_s_min: float = 10.0, expected_s: float = 50.0, load_s: float = 5.0
    ) -> None:
        self.desk = Desk("srtf")
        self.desk.submit(1, expected_s=expected_s, load_s=load_s)
        self.questions = 0
        self.count, self.open_jobs = 2, 1
        self.asked = asyncio.Event()
        self.answers: asyncio.Queue[EtaAnswer] = asyncio.Queue()
        self.worker = EtaWorker(
            self.question, self.answers.put_nowait, lambda: self.open_jobs, share, lasts_s_min
        )

    def question(self) -> EtaQuestion:
        self.questions += 1
        self.asked.set()
        question = question_of(self.desk.engine, EtaBook(), seed=1, count=self.count)
        claims: dict[JobId, list[LengthClaim]] = {JobId(f"c{number}"): [] for number in range(self.open_jobs)}
        return msgspec.structs.replace(question, claims=claims)

    def most_jobs_end(self) -> None:
        self.open_jobs = 1
        self.worker.look_again()


def test_a_change_is_asked_about_in_a_child_and_the_next_one_after_it() -> None:
    async def main() -> None:
        asking = Asking()
        asking.worker.look_again()
        first = await asking.answers.get()
        asking.desk.submit(2, expected_s=10.0)
        asking.worker.look_again()
        asking.worker.look_again()
        second = await asking.answers.get()
        await asking.worker.close()
        assert [[eta.job_id for eta in each.etas] for each in (first, second)] == [["1"], ["1", "2"]]
        assert asking.questions == 2
        assert first.cpu_s > 0.0

    asyncio.run(main())


def test_a_child_that_dies_is_started_again() -> None:
    async def main() -> None:
        asking = Asking()
        asking.worker.look_again()
        await asking.answers.get()
        child = asking.worker._child.process
        assert child is not None
        child.kill()
        await child.wait()
        answer = await asking.worker._answer(msgspec.structs.replace(asking.question(), seed=2))
        assert answer is not None and "died" in answer.error
        again = await asking.worker._answer(msgspec.structs.replace(asking.question(), seed=2))
        assert again is not None and again.error == ""
        await asking.worker.close()

    asyncio.run(main())


def test_a_job_that_goes_on_after_its_time_is_asked_about_without_a_change() -> None:
    async def main() -> None:
        asking = Asking(lasts_s_min=0.0, expected_s=0.1, load_s=0.0)
        asking.worker.look_again()
        for _ in range(3):
            await asking.answers.get()
        await asking.worker.close()

    asyncio.run(main())


def test_no_rest_delays_the_next_answer_once_most_jobs_have_ended() -> None:
    async def main() -> None:
        asking = Asking(share=1e-9)
        asking.open_jobs = 10_000
        asking.worker.look_again()
        await asking.answers.get()
        asking.open_jobs = 6_000
        asking.worker.look_again()
        await asyncio.sleep(0)
        assert asking.questions == 1, "years of rest are left"
        asking.most_jobs_end()
        async with asyncio.timeout(within_s(60)):
            await asking.answers.get()
        await asking.worker.close()
        assert asking.questions == 2

    asyncio.run(main())


def test_a_question_is_given_up_once_most_of_its_jobs_have_ended() -> None:
    async def main() -> None:
        asking = Asking()
        asking.open_jobs, asking.count = 10_000, 10**9  # It would take days.
        asking.worker.look_again()
        await asking.asked.wait()
        asking.count = 2
        asking.most_jobs_end()
        async with asyncio.timeout(within_s(60)):
            answer = await asking.answers.get()
        await asking.worker.close()
        assert (answer.count, asking.questions) == (2, 2)

    asyncio.run(main())


def test_a_child_whose_controller_was_killed_ends_without_a_word() -> None:
    words = (sys.executable, "-m", "cotenant.controller.sim.eta")
    with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=PIPE) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        child.stdout.close()
        child.stdin.write((5).to_bytes(4, "big") + b"wrong")
        child.stdin.close()
        said = child.stderr.read()
    assert (child.returncode, said) == (0, b"")


def test_a_policy_that_fails_in_a_roll_out_is_an_answer() -> None:
    async def main() -> None:
        asking = Asking()
        question = asking.question()
        answer = await asking.worker._answer(msgspec.structs.replace(question, image=b"no image"))
        await asking.worker.close()
        assert answer is not None and answer.error
        assert answer.etas == []

    asyncio.run(main())


def test_without_a_share_nobody_works() -> None:
    async def main() -> None:
        asking = Asking(share=0.0)
        asking.worker.look_again()
        await asking.worker.close()
        assert asking.questions == 0

    asyncio.run(main())
