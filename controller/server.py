"""The live controller: the socket, timers, threads and child processes around its loop (`loop.py`).

Rule: takes no decision and keeps no state of its own; what it knows beyond the journal (who is
connected, what was sent) it could forget at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from cotenant.controller import api, store
from cotenant.controller.domain import ENDED, ComputeRequest, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import MakePolicy
from cotenant.controller.engine_settings import engine_config
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.executors.allocating import allocator_of
from cotenant.controller.history import EtaAnswer, EtaQuestion, comparable_eta, policy_label, question_of
from cotenant.controller.loop import WAITING_ROWS_MAX, ControllerLoop
from cotenant.controller.notices import ChildDeliveries, Notifier, OwnerRequests, why_unreached
from cotenant.controller.policies import registry
from cotenant.controller.policies.registry import make_or_stand_in
from cotenant.controller.redirecting import Redirector
from cotenant.controller.router import Router, raise_descriptor_limit
from cotenant.controller.system import paths
from cotenant.controller.system.keys import Identity, KeyProblem
from cotenant.controller.system.metrics import Endpoint, Sheet, Sheets, open_endpoint
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.system.sections import Settings
from cotenant.controller.system.trees import TreeFiles
from cotenant.controller.wire import clients as wire
from cotenant.controller.workers import ComputeWorker, EtaWorker, ForesightWorker, ShadowWorker

TICK_S: Final = 0.5
TRY_AGAIN_S: Final = 2.0
ALARM_WAIT_S_MAX: Final = 3600.0

log = logging.getLogger("cotenant.controller")


def reads_commands(settings: Settings, *, is_local: bool) -> bool:
    """Whether everybody reads the command lines of all: as the configuration says, else where nobody but this
    account can ask (`is_local`: by a socket of its own)."""
    is_private = is_local and not settings.controller.users
    return (settings.privacy.commands or ("everyone" if is_private else "owner")) == "everyone"


class Controller:
    """The process of one controller: its socket, its timers and its threads. It is made inside a running
    event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        taken: store.TakenOver | None = None,
        router: Router | None = None,
        make_policy: MakePolicy = make_or_stand_in,
        make_router: Callable[..., Router] = Router,
        make_worker: Callable[..., ComputeWorker] = ComputeWorker,
        waiting_rows_max: int = WAITING_ROWS_MAX,
    ) -> None:
        """Recover, listen, be ready. `taken`: it has followed, and leads from now on. `router`: it listens
        already. Beyond `waiting_rows_max` rows that are not on disk the router rests.

        Raises:
            MetricsProblem, JournalError, RouterError, BadEndpoint, KeyProblem: one line with what to do.
        """
        began_s = time.monotonic()
        self._settings = settings.controller
        self._make_policy, self._make_router, self._make_worker = make_policy, make_router, make_worker
        self._taken, self._given_router = taken, router
        self.hands_over = False
        """It ends for another controller to lead, and is to follow from then on."""
        self._waiting_rows_max = waiting_rows_max
        self._asyncio = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._try_again_s = 0.0
        self._released = (-1, 0)
        self._fatal: store.Fatal | None = None
        self._is_open = False
        """Everything has been opened: it can run."""
        state_dir = paths.controller_state_dir(settings)
        raise_descriptor_limit()
        self._endpoint = open_endpoint(settings.metrics.controller_listen, "metrics.controller_listen")
        place, own = paths.controller_journal(settings), paths.own_endpoint(settings)
        self._journal = store.Journal(
            taken.database if taken else store.open_database(place, endpoint=own),
            writing=taken.writing if taken else None,
            commit_every_ms=settings.controller.commit_every_ms,
            hand_over=self._hand_over,
            on_failure=self._commit_failed,
        )
        try:
            self._start(settings, state_dir)
        except BaseException:
            self._journal.close()
            if self._endpoint is not None:
                self._endpoint.close()
            raise
        self._is_open = True
        self.recovery_s = time.monotonic() - began_s

    def _start(self, settings: Settings, state_dir: Path) -> None:
        self._package = package = version("cotenant")
        wall_s = time.time()
        self.core = store.Core(
            self._journal,
            self._make_policy,
            engine_config(settings, self._journal.began_s(wall_s)),
            package=package,
            wall_s=wall_s,
            up=store.uptime(),
            snapshot_every=settings.controller.snapshot_every,
            follow=self._taken.follower.state if self._taken else None,
        )
        if why := registry.why_not(self.core.state.engine.current.name):
            log.error("%s; nothing new starts until `cotenant policy set` names another", why)
        self._open_peers(settings, state_dir)
        self._compute_worker = self._make_worker(self.loop.take_computed)
        share = settings.controller.eta_share
        self._foresight_worker = ForesightWorker(share)
        self._eta_worker = EtaWorker(self._eta_question, self._etas_found, self._open_jobs, share)
        shadow = self._handlers.shadow
        self._shadow_worker = ShadowWorker(shadow.question, shadow.note_answer)
        self._scrub = store.Scrub(
            self._journal.database, settings.controller.scrub_every_s, self._scrubbed_soon
        )
        if self._endpoint is not None:
            self._serve_metrics(self._endpoint)

    def _open_peers(self, settings: Settings, state_dir: Path) -> None:
        """The socket, those who talk through it, and the loop between them and the journal."""
        is_shared = self._journal.database.is_shared
        self._secrets = Secrets(store.SecretRows(self._journal) if is_shared else state_dir / "secrets")
        self._secrets.used_by(self.core.state.engine.jobs)
        endpoint = paths.controller_endpoint(settings)
        self._router = self._open_router(endpoint, paths.keys_dir(settings), settings.controller.users)
        self.endpoint = self._router.endpoint
        lease_s = None if self._router.is_local else settings.controller.lease_s
        trees = TreeFiles(paths.snapshot_store(settings))
        tree_requests = api.TreeRequests(self.core, trees, settings.snapshot)
        self._link = AgentExecutor(
            self.core,
            self._router.send,
            self._secrets,
            lease_s=lease_s,
            silent_after_s=settings.controller.silent_after_s,
            trees=trees,
        )
        self._open_executors(settings)
        self._leadership = api.LeadershipWatch(self.core)
        about = api.About(version=self._package, endpoint=self.endpoint, started_s=self.core.clock.now_s())
        self._handlers = api.RequestHandlers(
            self.core,
            self._link,
            self._router.send,
            self._secrets,
            about,
            self._stopped.set,
            foresee=self._foresee,
            reads_commands=reads_commands(settings, is_local=self._router.is_local),
            trees=tree_requests,
            more=(
                tree_requests,
                self._allocator.requests,
                self._notifier,
                OwnerRequests(self.core, self._notifier),
                api.LeadershipRequests(
                    self.core, self._leadership, paths.own_endpoint(settings) or endpoint, self._leave
                ),
            ),
            tells=self._notifier,
        )
        self.loop = ControllerLoop(
            self.core,
            self._link,
            self._handlers,
            self,
            executors=(self._allocator, self._notifier),
            waiting_rows_max=self._waiting_rows_max,
        )
        self._redirector = Redirector(self._router.send, self.core.counters, self._why_elsewhere)
        self._started_s = about.started_s

    def _open_executors(self, settings: Settings) -> None:
        """Those beside the agents."""
        is_only = len(paths.client_endpoints(settings)) == 1
        self._allocator = allocator_of(
            self.core,
            lambda work: self.loop.guard(work),
            endpoint=self.endpoint if is_only else paths.client_endpoint(settings),
            keys_dir=paths.keys_dir(settings),
            every_s=settings.controller.slurm_every_s,
        )
        self._deliveries = ChildDeliveries()
        self._notifier = Notifier(
            self.core, self._link, self._secrets, settings.notify, self._deliveries, why_unreached
        )
        self._secrets.used_by(self._notifier.jobs_waiting)
        self._release_secrets()  # Also of what a restored journal has lost.

    def _open_router(self, endpoint: str, keys: Path, users: str) -> Router:
        if self._given_router is None:
            return self._make_router(endpoint, keys, self._receive, self.core.counters, users)
        self._given_router.hand_to(self._receive, self.core.counters)
        self._given_router.pause(False)
        return self._given_router

    def _serve_metrics(self, endpoint: Endpoint) -> None:
        self._metrics = api.ClusterMetrics(self.core.state.engine)
        endpoint.serve(Sheets(self._asyncio, self._sheet).newest)
        log.info("metrics at http://%s/metrics", endpoint.address)
        if endpoint.warning:
            log.warning("%s", endpoint.warning)

    # --- Running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`, a client's `Stop`, or idleness. What is open is written before it returns.

        Raises:
            Fatal: it had to end.
        """
        for request in self.core.state.compute_requests.values():
            self._compute_worker.start(request)
        self._shadow_worker.look_again()
        self.loop.set_alarm()
        self._scrub.start()
        self._leadership.start()
        ticking = self._asyncio.create_task(self._tick_for_ever())
        stopping = self._asyncio.create_task(self._stopped.wait())
        try:
            done, _ = await asyncio.wait((ticking, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            ticking.cancel()
            stopping.cancel()
            await self._close()

    def stop(self) -> None:
        """End soon and in order."""
        self._stopped.set()

    def _leave(self) -> None:
        self.hands_over = True
        self._router.pause(True)
        self.stop()

    @property
    def router(self) -> Router:
        """Its socket, for the one that follows on it after a hand-over."""
        return self._router

    async def _close(self) -> None:
        self.loop.rest()
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)
        await self._allocator.close()
        await self._deliveries.close()
        await self._compute_worker.close()
        await self._eta_worker.close()
        await self._foresight_worker.close()
        await self._shadow_worker.close()
        await asyncio.to_thread(self._scrub.close)
        await asyncio.to_thread(self._leadership.close)
        if self._fatal is None:
            if not self.core.stuck:
                self.core.snapshot()
            self.loop.seal()
            self._journal.flush()
            await asyncio.sleep(0)  # The loop hands over what has become durable: answers leave.
        if self.hands_over and self._fatal is None:
            self._router.pause(True)
        else:
            self._router.close()
        self._journal.close(hands_over=self.hands_over)
        self._secrets.close()
        if self._fatal is not None:
            raise self._fatal

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._tick()

    def _tick(self) -> None:
        now_s = self.core.clock.now_s()
        self._router.take_pulse(TICK_S)
        self._journal.show_leading()
        if self.core.stuck and now_s >= self._try_again_s:
            self._try_again_s = now_s + (TICK_S if self._journal.database.is_shared else TRY_AGAIN_S)
            self.loop.write_again()
        if self._journal.may_be_replaced(self._settings.leader_lease_s):
            self.core.give_up_answers()
            return  # What is due would be told from a state that may be old.
        self.loop.tick()
        self.loop.guard(lambda: self._keep_house(now_s))

    def _keep_house(self, now_s: float) -> None:
        """Looks after what is neither a decision nor a message: the shadow, keys, secrets, idleness."""
        if self._handlers.shadow.is_wanted:
            self._shadow_worker.look_again()
        try:
            self._router.refresh_users()
        except KeyProblem as problem:
            self.core.counters["bad_users_file"] += 1
            log.error("keys are as before: %s", problem)
        told = self.core.counters["notices_sent"] + self.core.counters["notices_failed"]
        seen = self._journal.last_seq + told, self.core.counters["failed_commits"]
        if self._journal.is_settled and seen != self._released:
            self._released = seen
            self._release_secrets()
        self._rest_if_idle(now_s)

    def _sheet(self) -> Sheet:
        """Puts the metrics together for one scrape."""
        core, now_s = self.core, self.core.clock.now_s()
        facts = api.ServerFacts(
            version=self._package,
            uptime_s=now_s - self._started_s,
            counters=core.counters,
            decisions=core.decisions,
            undelivered=self._link.undelivered + self._allocator.undelivered,
            entries=core.journal.last_seq,
            commits=core.journal.commits,
            waiting_rows=core.journal.waiting,
            notices_waiting=self._notifier.undelivered,
            size_bytes=core.journal.size_bytes(),
            stuck=bool(core.stuck),
            damages=None if core.scrubbed is None else len(core.scrubbed.damages),
            checked_s=None if core.scrubbed is None else time.monotonic() - core.scrubbed.ended_s,
            eta_hit_ratio=api.hit_rate(core.state.etas, policy_label(core.state.engine), now_s)[0],
            leadership=self._leadership.news,
        )
        return self._metrics.sheet(core.state.engine, facts, now_s)

    def _release_secrets(self) -> None:
        waiting = self._notifier.jobs_waiting
        self._secrets.release(lambda job_id: job_id not in waiting and self._is_over(job_id))

    def _is_over(self, job_id: JobId) -> bool:
        job = self.core.state.engine.jobs.get(job_id)
        return job is None or job.phase in ENDED

    def _rest_if_idle(self, now_s: float) -> None:
        limit_s = self._settings.idle_exit_s
        if limit_s > 0 and now_s - self._handlers.asked_s >= limit_s and not self._has_work():
            log.info("nothing to do for %g s: ending", limit_s)
            self.stop()

    def _has_work(self) -> bool:
        return any(job.phase not in ENDED for job in self.core.state.engine.jobs.values())

    def _receive(self, address: bytes, who: Identity, is_client: bool, frame: bytes) -> None:
        if self._journal.may_be_replaced(self._settings.leader_lease_s):
            self.core.give_up_answers()
            self._redirector.answer(address, is_client, frame)
        else:
            self.loop.receive(address, who, is_client, frame)

    def _why_elsewhere(self) -> tuple[str, str]:
        place = self._journal.place
        return f"it cannot reach {place}: another controller may lead, nothing was changed", ""

    # --- What the loop asks for (`ControllerEdges`) --------------------------------------------------------

    def send(self, address: bytes, frame: bytes) -> bool:
        """Sends a frame to a peer; False: the peer is gone, or reads too slowly."""
        return self._router.send(address, frame)

    def wake_at(self, at_s: float | None) -> None:
        """Rings the loop at this time of the controller's clock and no other; None: not at all."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if at_s is not None:
            wait_s = max(0.0, at_s - self.core.clock.now_s())
            self._alarm = self._asyncio.call_later(min(wait_s, ALARM_WAIT_S_MAX), self.loop.ring)

    def pause_reading(self, paused: bool) -> None:
        """Reads no more frames for now, or again; peers' queues fill up and they wait."""
        self._router.pause(paused)

    def start_computing(self, request: ComputeRequest) -> None:
        """Computes what a policy or a profile asked for, in a child process."""
        self._compute_worker.start(request)

    def take_note(self, decided: Sequence[store.Decided]) -> None:
        """Tells the page of metrics, and those who compute what follows, of decisions."""
        if self._endpoint is not None:
            for each in decided:
                self._metrics.note_event(each.event)
        if any(type(each.event) is not ev.EtasTold for each in decided):
            self._eta_worker.look_again()
        if decided:
            self._shadow_worker.look_again()

    def end(self, fatal: store.Fatal) -> None:
        """Ends without reading, writing or sending anything more."""
        self._fatal = fatal
        self._router.pause(True)
        self.stop()

    # --- When jobs end -----------------------------------------------------------------------------

    def _eta_question(self) -> EtaQuestion | None:
        if not self._has_work():
            return None
        core = self.core
        return question_of(core.state.engine, core.state.etas, seed=core.journal.last_seq)

    def _open_jobs(self) -> int:
        return len(self.core.state.etas.claims)

    def _foresee(
        self, questions: Sequence[EtaQuestion], then: Callable[[Sequence[EtaAnswer]], None], within_s: float
    ) -> bool:
        return self._foresight_worker.ask(
            questions, lambda found: self.loop.guard(lambda: then(found)), within_s
        )

    def _etas_found(self, answer: EtaAnswer) -> None:
        """Keep it for questions; journal the intervals that will be compared with what comes."""
        state, now_s = self.core.state, self.core.clock.now_s()
        if answer.policy != policy_label(state.engine):
            return
        self.core.etas = answer
        told = []
        for eta in answer.etas:
            job = state.engine.jobs.get(eta.job_id)
            if job is None or job.phase in ENDED or state.etas.kind_due(job, now_s) != eta.kind:
                continue
            if (record := comparable_eta(eta)) is not None:
                told.append(record)
        if told:
            event = ev.EtasTold(at_s=answer.now_s, etas=tuple(told))
            self.loop.happen(event)

    # --- From the writer thread --------------------------------------------------------------------

    def _hand_over(self, effects: Sequence[store.Effect]) -> None:
        self._asyncio.call_soon_threadsafe(self._durable, effects)

    def _durable(self, effects: Sequence[store.Effect]) -> None:
        if self._is_open:  # Else it could not start, and ends: nobody is there for what follows.
            self.loop.durable(effects)

    def _commit_failed(self, error: store.StorageError) -> None:
        self._asyncio.call_soon_threadsafe(self._note_failure, error)

    def _note_failure(self, error: store.StorageError) -> None:
        if self._is_open:
            self.loop.commit_failed(error)

    def _scrubbed_soon(self, result: store.Scrubbed) -> None:
        with suppress(RuntimeError):  # The loop is closed: the process is ending.
            self._asyncio.call_soon_threadsafe(self._note_scrub, result)

    def _note_scrub(self, result: store.Scrubbed) -> None:
        self.core.scrubbed = result
        for damage in result.damages:
            log.error(
                "the journal %s is damaged: %s; %s", self._journal.place, damage, wire.DAMAGED_JOURNAL_ADVICE
            )
        if not result.damages:
            log.info("the journal is sound: %d entries, %d snapshots", result.entries, result.snapshots)
