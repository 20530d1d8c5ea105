"""The live controller: one socket in, events through the engine, commands and answers out.

Rule: takes no decision and keeps no state of its own; what it knows beyond the journal (who is
connected, what was sent) it could forget at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

from cotenant.controller.api import About, ClusterMetrics, Code, RequestHandlers, ServerFacts, hit_rate
from cotenant.controller.domain import ENDED, ComputeRequest, JobId
from cotenant.controller.domain import events as ev
from cotenant.controller.engine import (
    EngineConfig,
    EtaAnswer,
    EtaQuestion,
    MakePolicy,
    policy_label,
    question_of,
    to_compare,
)
from cotenant.controller.executors import Executor
from cotenant.controller.executors.agents import AgentExecutor
from cotenant.controller.executors.allocating import allocator_of
from cotenant.controller.performance import InterferenceModel
from cotenant.controller.policies import registry
from cotenant.controller.policies.registry import make_or_stand_in
from cotenant.controller.router import Router, raise_descriptor_limit
from cotenant.controller.store import (
    Core,
    Decided,
    Effect,
    Fatal,
    Journal,
    Poisoned,
    Scrub,
    Scrubbed,
    Stuck,
    let_follow,
    uptime,
)
from cotenant.controller.system import paths
from cotenant.controller.system.keys import Identity, KeyProblem
from cotenant.controller.system.metrics import Endpoint, Sheet, Sheets, opened
from cotenant.controller.system.secrets import Secrets
from cotenant.controller.system.sections import Settings
from cotenant.controller.system.settings import SettingsError
from cotenant.controller.wire import (
    UNKNOWN_REQUEST,
    BadMessage,
    FromAgent,
    HostRefused,
    WrongVersion,
    decode,
    encode,
    refusal,
    request_in,
)
from cotenant.controller.wire import clients as wire
from cotenant.controller.workers import ComputeWorker, EtaWorker, ForesightWorker, ShadowWorker

TICK_S: Final = 0.5
WAITING_ROWS_MAX: Final = 20_000
"""With more rows on their way to the disk, the socket is not read until the disk has caught up."""
TRY_AGAIN_S: Final = 2.0
ALARM_SPACING_S: Final = 0.01
ALARM_WAIT_S_MAX: Final = 3600.0

INTERNAL: Final = "the controller failed on this request and goes on without it; its log says why"

TOO_MUCH: Final = "too much at once: wait a few seconds and try again"

log = logging.getLogger("cotenant.controller")


def engine_config(settings: Settings, began_s: float = 0.0) -> EngineConfig:
    """What the engine is told; a change takes effect at the next start. `began_s`: when time was 0 for the
    journal, by the wall clock; 0: that is not known.

    Raises:
        SettingsError: the interference model cannot be used.
    """
    return EngineConfig(
        limits=settings.limits,
        organisations=settings.organisations,
        policy=settings.policy,
        checkpoint_every_s=settings.checkpoint.every_s,
        profile_s=settings.profiler.seconds,
        keep_ended=settings.controller.keep_ended,
        predictor=interference_model(settings.controller.predictor),
        began_hour=int(began_s // 3600),
    )


def interference_model(path: str) -> InterferenceModel | None:
    """None for no path.

    Raises:
        SettingsError: no such file, or no usable model in it.
    """
    if not path:
        return None
    from cotenant.controller.models.interference import model_file

    try:
        model = model_file.read(Path(path).expanduser().read_bytes(), path)
    except OSError as error:
        raise SettingsError(f"controller.predictor: {path}: {error.strerror}") from None
    except model_file.ModelProblem as error:
        raise SettingsError(f"controller.predictor: {error}") from None
    for file in model.training.files:
        log.info("interference model %s: trained on %s, licence: %s", path, file.name, file.licence)
    return model


class Controller:
    """One running controller. Make it inside a running event loop."""

    def __init__(
        self,
        settings: Settings,
        *,
        make_policy: MakePolicy = make_or_stand_in,
        make_router: Callable[..., Router] = Router,
        make_worker: Callable[..., ComputeWorker] = ComputeWorker,
        waiting_rows_max: int = WAITING_ROWS_MAX,
    ) -> None:
        """Recover, listen, be ready. Beyond `waiting_rows_max` rows that are not on disk the router rests.

        Raises:
            MetricsProblem, JournalError, DoorError, BadEndpoint, KeyProblem: one line with what to do.
        """
        began_s = time.monotonic()
        self._settings = settings.controller
        self._make_policy, self._make_router, self._make_worker = make_policy, make_router, make_worker
        self._waiting_rows_max = waiting_rows_max
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = 0.0
        self._failed_alarms = 0
        self._try_again_s = 0.0
        self._is_full = False
        self._released = (-1, 0)
        self._rebuilds = 0
        self._fatal: Fatal | None = None
        state_dir = paths.controller_state_dir(settings)
        raise_descriptor_limit()
        self._endpoint = opened(settings.metrics.controller_listen, "metrics.controller_listen")
        self._journal = Journal(
            state_dir,
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
        self.recovery_s = time.monotonic() - began_s

    def _start(self, settings: Settings, state_dir: Path) -> None:
        self._package = package = version("cotenant")
        wall_s = time.time()
        self.core = Core(
            self._journal,
            self._make_policy,
            engine_config(settings, self._journal.began_s(wall_s)),
            package=package,
            wall_s=wall_s,
            up=uptime(),
            snapshot_every=settings.controller.snapshot_every,
        )
        if why := registry.why_not(self.core.state.engine.policy_name):
            log.error("%s; nothing new starts until `cotenant policy set` names another", why)
        self._secrets = Secrets(state_dir / "secrets")
        self._secrets.used_by(self.core.state.engine.jobs)
        self._secrets.release(self._is_over)  # Also of what a restored journal has lost.
        endpoint = paths.controller_endpoint(settings)
        self._router = self._make_router(
            endpoint, paths.keys_dir(settings), self._receive, self.core.counters
        )
        self.endpoint = self._router.endpoint
        lease_s = None if self._router.is_local else settings.controller.lease_s
        self._link = AgentExecutor(
            self.core,
            self._router.send,
            self._secrets,
            lease_s=lease_s,
            silent_after_s=settings.controller.silent_after_s,
        )
        self._allocator = allocator_of(
            self.core,
            self._guarded,
            endpoint=self.endpoint,
            keys_dir=paths.keys_dir(settings),
            every_s=settings.controller.slurm_every_s,
        )
        self._executors: tuple[Executor, ...] = (self._link, self._allocator)
        about = About(version=package, endpoint=self.endpoint, started_s=self.core.clock.now_s())
        self._handlers = RequestHandlers(
            self.core,
            self._link,
            self._router.send,
            self._secrets,
            about,
            self._stopped.set,
            foresee=self._foresee,
            more=(self._allocator.requests,),
        )
        self._compute_worker = self._make_worker(self._computed)
        share = settings.controller.eta_share
        self._foresight_worker = ForesightWorker(share)
        self._eta_worker = EtaWorker(self._eta_question, self._etas_found, self._open_jobs, share)
        shadow = self._handlers.shadow
        self._shadow_worker = ShadowWorker(shadow.question, shadow.told)
        self._scrub = Scrub(self._journal.path, settings.controller.scrub_every_s, self._scrubbed_soon)
        self._started_s = about.started_s
        if self._endpoint is not None:
            self._serve_metrics(self._endpoint)

    def _serve_metrics(self, endpoint: Endpoint) -> None:
        self._metrics = ClusterMetrics(self.core.state.engine)
        endpoint.serve(Sheets(self._loop, self._sheet).newest)
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
        self._shadow_worker.changed()
        self._set_alarm()
        self._scrub.start()
        ticking = self._loop.create_task(self._tick_for_ever())
        stopping = self._loop.create_task(self._stopped.wait())
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

    async def _close(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._is_full = False
        self._router.pause(True)
        if self._endpoint is not None:
            await asyncio.to_thread(self._endpoint.close)
        await self._allocator.close()
        await self._compute_worker.close()
        await self._eta_worker.close()
        await self._foresight_worker.close()
        await self._shadow_worker.close()
        await asyncio.to_thread(self._scrub.close)
        if self._fatal is None:
            if not self.core.stuck:
                self.core.snapshot()
            let_follow(self.core.seal(), self._carry_out)
            self._journal.flush()
            await asyncio.sleep(0)  # The loop hands over what has become durable: answers leave.
        self._router.close()
        self._journal.close()
        self._secrets.close()
        if self._fatal is not None:
            raise self._fatal

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._guarded(self._tick)

    def _tick(self) -> None:
        now_s = self.core.clock.now_s()
        self._router.take_pulse(TICK_S)
        if self.core.stuck and now_s >= self._try_again_s:
            self._try_again_s = now_s + TRY_AGAIN_S
            if self.core.try_again():
                log.warning("the journal can be written again")
                self._set_alarm()
        for executor in self._executors:
            executor.tick()
        self._handlers.tick()
        if self._handlers.shadow.is_wanted:
            self._shadow_worker.changed()
        try:
            self._router.refresh_users()
        except KeyProblem as problem:
            self.core.counters["bad_users_file"] += 1
            log.error("keys are as before: %s", problem)
        seen = self._journal.last_seq, self.core.counters["failed_commits"]
        if self._journal.is_settled and seen != self._released:
            self._released = seen
            self._secrets.release(self._is_over)
        self._rest_if_idle(now_s)

    def _sheet(self) -> Sheet:
        """For one scrape."""
        core, now_s = self.core, self.core.clock.now_s()
        facts = ServerFacts(
            version=self._package,
            uptime_s=now_s - self._started_s,
            counters=core.counters,
            decisions=core.decisions,
            undelivered=sum(executor.undelivered for executor in self._executors),
            entries=core.journal.last_seq,
            commits=core.journal.commits,
            waiting_rows=core.journal.waiting,
            size_bytes=core.journal.size_bytes(),
            stuck=bool(core.stuck),
            damages=None if core.scrubbed is None else len(core.scrubbed.damages),
            checked_s=None if core.scrubbed is None else time.monotonic() - core.scrubbed.ended_s,
            eta_hit_ratio=hit_rate(core.state.etas, policy_label(core.state.engine))[0],
        )
        return self._metrics.sheet(core.state.engine, facts, now_s)

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

    # --- In ----------------------------------------------------------------------------------------

    def _receive(self, address: bytes, who: Identity, is_client: bool, frame: bytes) -> None:
        """One message, from bytes to effects."""
        if is_client and not self._handlers.affords(who, len(frame)):
            self.core.counters["refused_requests"] += 1
            number = request_in(frame)
            if number is not None:
                self._refuse(address, number, "refused", TOO_MUCH)
            return
        try:
            if is_client:
                request: wire.Request = decode(frame, wire.Request)
                self._guarded(
                    lambda: self._handlers.ask(address, who, request),
                    lambda: self._refuse(address, request.request_id, "internal", INTERNAL),
                )
            else:
                message: FromAgent = decode(frame, FromAgent)
                self._guarded(lambda: self._heard(address, who, message))
        except WrongVersion as wrong:
            self.core.counters["bad_messages"] += 1
            why = refusal(wrong.theirs)
            no = (
                wire.Failure(request_id=0, code="version", message=why) if is_client else HostRefused(why=why)
            )
            self._router.send(address, encode(no, wrong.theirs))
        except BadMessage:
            self.core.counters["bad_messages"] += 1
            number = request_in(frame) if is_client else None
            if number is not None:
                self._refuse(address, number, "version", UNKNOWN_REQUEST)

    def _heard(self, address: bytes, who: Identity, message: FromAgent) -> None:
        if not self._link.heard(address, who, message):
            self.core.counters["bad_messages"] += 1

    def _refuse(self, address: bytes, request_id: int, code: Code, message: str) -> None:
        self._router.send(address, encode(wire.Failure(request_id=request_id, code=code, message=message)))

    def _guarded(self, work: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Do it and commit its consequences. An event that breaks the engine goes into quarantine, with its
        traceback.

        State changes only inside `core.happen`, which takes back what fails; so whatever else a message
        breaks, the controller goes on without it.
        """
        try:
            work()
            self._settle()
        except Fatal as fatal:
            self._end_badly(fatal)
            return
        except Poisoned as poisoned:
            log.error("put aside: %s", poisoned, exc_info=poisoned)
        except Stuck:
            self.core.counters["stuck"] += 1
        except Exception:
            log.exception("a message was dropped")
            self.core.counters["internal_errors"] += 1
            if otherwise is not None:
                otherwise()
        self._believe()
        let_follow(self.core.seal(), self._carry_out)
        self._set_alarm()
        if self._journal.waiting > self._waiting_rows_max:
            self._is_full = True
            self._router.pause(True)

    def _end_badly(self, fatal: Fatal) -> None:
        """End without reading, writing or sending anything more."""
        log.critical("ending: %s", fatal)
        self._fatal = fatal
        self._router.pause(True)
        self.stop()

    # --- Out ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Pass what was just decided to those who count it or wait for it."""
        decided = self.core.decided()
        if self._endpoint is not None:
            for each in decided:
                self._metrics.happened(each.event)
        self._handlers.settle(decided)
        if any(type(each.event) is not ev.EtasTold for each in decided):
            self._eta_worker.changed()
        if decided:
            self._shadow_worker.changed()

    def _believe(self) -> None:
        """Reset those who keep something beside the state, once it was read back."""
        if self.core.rebuilds != self._rebuilds:
            self._rebuilds = self.core.rebuilds
            for executor in self._executors:
                executor.rebuilt()
            self._handlers.rebuilt()

    def _carry_out(self, decided: Decided) -> None:
        """It is durable."""
        for executor in self._executors:
            executor.carry_out(decided)
        for command in decided.commands:
            if isinstance(command, ComputeRequest):
                self._compute_worker.start(command)

    def _computed(self, result: ev.Computed) -> None:
        if result.request_id in self.core.state.compute_requests:
            self._guarded(lambda: void(self.core.happen(result)))

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
            questions, lambda found: self._guarded(lambda: then(found)), within_s
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
            if (record := to_compare(eta)) is not None:
                told.append(record)
        if told:
            event = ev.EtasTold(at_s=answer.now_s, etas=tuple(told))
            self._guarded(lambda: void(self.core.happen(event)))

    # --- Time --------------------------------------------------------------------------------------

    def _set_alarm(self) -> None:
        """The engine is woken when it wants to be. Asked after every message: mostly nothing has changed."""
        stopping = self.core.stuck or self._stopped.is_set()
        alarm_s = None if stopping else self.core.state.engine.next_alarm_s
        if self._alarm is not None and alarm_s == self._alarm_s:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if alarm_s is None:
            return
        wait_s = max(alarm_s - self.core.clock.now_s(), ALARM_SPACING_S * 2**self._failed_alarms)
        self._alarm_s = alarm_s
        self._alarm = self._loop.call_later(min(wait_s, ALARM_WAIT_S_MAX), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        broken = self.core.counters["quarantined"]
        if self.core.ring():
            self._guarded(lambda: void(self.core.happen(ev.AlarmRang())))
        failed = self.core.counters["quarantined"] > broken
        self._failed_alarms = min(self._failed_alarms + 1, 14) if failed else 0
        self._set_alarm()

    # --- From the writer thread --------------------------------------------------------------------

    def _hand_over(self, effects: Sequence[Effect]) -> None:
        self._loop.call_soon_threadsafe(self._durable, effects)

    def _durable(self, effects: Sequence[Effect]) -> None:
        let_follow(effects, self._carry_out)
        if self._is_full and self._journal.waiting <= self._waiting_rows_max // 2:
            self._is_full = False
            self._router.pause(False)

    def _scrubbed_soon(self, result: Scrubbed) -> None:
        with suppress(RuntimeError):  # The loop is closed: the process is ending.
            self._loop.call_soon_threadsafe(self._scrubbed, result)

    def _scrubbed(self, result: Scrubbed) -> None:
        self.core.scrubbed = result
        for damage in result.damages:
            log.error(
                "the journal %s is damaged: %s; %s", self._journal.path, damage, wire.DAMAGED_JOURNAL_ADVICE
            )
        if not result.damages:
            log.info("the journal is sound: %d entries, %d snapshots", result.entries, result.snapshots)

    def _commit_failed(self, error: sqlite3.Error) -> None:
        self._loop.call_soon_threadsafe(self._failed, error)

    def _failed(self, error: sqlite3.Error) -> None:
        log.error("the journal cannot be written (%s): nothing new is accepted, jobs go on", error)
        try:
            instead = self.core.commit_failed(error)
        except Fatal as fatal:
            self._end_badly(fatal)
            return
        self._believe()
        let_follow(instead, self._carry_out)


def void(value: object) -> None:
    """For callbacks whose result is not used."""
