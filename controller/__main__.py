"""`python -m cotenant.controller`: the controller as a process."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version

from cotenant.controller import store
from cotenant.controller.domain import ENDED, texts
from cotenant.controller.engine_settings import engine_config
from cotenant.controller.policies import registry
from cotenant.controller.router import Router, RouterError, raise_descriptor_limit
from cotenant.controller.server import TRY_AGAIN_S, Controller
from cotenant.controller.standby import Standby
from cotenant.controller.system import diagnostics, paths
from cotenant.controller.system import settings as sources
from cotenant.controller.system.endpoint import BadEndpoint
from cotenant.controller.system.keys import KeyProblem
from cotenant.controller.system.metrics import MetricsProblem
from cotenant.controller.system.sections import Settings

log = logging.getLogger("cotenant.controller")


def main(words: list[str] | None = None) -> int:
    """0 after an orderly end, 1 if it cannot start, 2 for wrong flags."""
    parser = argparse.ArgumentParser(prog="cotenant controller", description=__doc__)
    parser.add_argument("--endpoint", help="ipc:///PATH (this user only) or tcp://HOST:PORT (with keys)")
    parser.add_argument("--state-dir", help="where journal and secrets live")
    parser.add_argument("--keys-dir", help="where `cotenant init` put the keys")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="any setting; may be repeated"
    )
    parser.add_argument(
        "--standby", action="store_true", help="follow the controller that leads, and take over from it"
    )
    parser.add_argument(
        "--replay", action="store_true", help="only check that the policies would decide the same again"
    )
    flags = parser.parse_args(words)
    to_stderr = logging.StreamHandler(diagnostics.UnfailingStream())
    to_stderr.setFormatter(Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[to_stderr])
    try:
        chosen = load(flags)
        if flags.replay:
            return check(chosen)
        if why := registry.why_not(chosen.policy.first):
            raise sources.SettingsError(f"policy.name: {why}")
        asyncio.run(serve(chosen, standby=flags.standby))
    except (sources.SettingsError, MetricsProblem, BadEndpoint) as error:
        return fail(str(error), 2)
    except (store.JournalError, store.StorageError, RouterError, KeyProblem, store.Fatal, OSError) as error:
        return fail(str(error), 1)
    return 0


class Lines(logging.Formatter):
    """A line per record, whatever names and errors are in it; only our own tracebacks have more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = texts.one_line(record.message)
        return super().formatMessage(record)


def load(flags: argparse.Namespace) -> Settings:
    """Loads the settings, with those that flags give. Raises SettingsError."""
    values: dict[str, object] = {
        "controller.endpoint": flags.endpoint,
        "controller.state_dir": flags.state_dir,
        "controller.keys_dir": flags.keys_dir,
    }
    for word in flags.set:
        key, equals, value = word.partition("=")
        if not equals:
            raise sources.SettingsError(f"--set {word}: write SECTION.KEY=VALUE")
        values[key] = value
    return sources.load(values).settings


def check(settings: Settings) -> int:
    """Ask the policies again about a whole journal, while no controller runs on it: 1 if they differ."""
    database = store.open_database(paths.controller_journal(settings))
    journal = store.JournalReader(database.open_reading(is_still=True), database.place)
    try:
        replayed = store.replay(journal, registry.make, version("cotenant"))
    finally:
        journal.close()
    for each in replayed.differences:
        print(texts.one_line(f"entry {each.seq} ({each.event}): {each.what}"))
    found = f"{len(replayed.differences)} differences" if replayed.differences else "the same decisions"
    print(f"{replayed.entries} entries, {found}" + (f" ({replayed.note})" if replayed.note else ""))
    return 1 if replayed.differences else 0


async def serve(settings: Settings, *, standby: bool = False) -> None:
    """Until a signal, `Stop` or idleness. A standby leads once nobody else does; who has handed over
    follows."""
    ending = Shutdown()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.stop)
    router: Router | None = None
    taken: store.TakenOver | None = None
    hold_back_s = 0.0
    while not ending.is_due:
        if standby:
            router = router or standby_router(settings)
            taken = await follow(settings, router, ending, hold_back_s)
            if taken is None:
                router.close()
                return
        controller = await lead(settings, taken, router, ending)
        if not controller.hands_over:
            return
        standby, router, hold_back_s = True, controller.router, settings.controller.leader_lease_s


class Shutdown:
    """What a signal is to stop: whoever runs now, and whoever would run next."""

    def __init__(self) -> None:
        self.is_due = False
        self.current: Callable[[], None] = lambda: None

    def stop(self) -> None:
        """Ends the one that runs, soon and in order."""
        self.is_due = True
        self.current()


async def lead(
    settings: Settings, taken: store.TakenOver | None, router: Router | None, ending: Shutdown
) -> Controller:
    """Decides until it ends. `taken`: what a standby begins with, listening at `router`."""
    # Nearly nothing here is cyclic, and a full collection takes the longer the larger the cluster is.
    gc.disable()
    controller = Controller(settings, taken=taken, router=router)
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)
    ending.current = controller.stop
    jobs = controller.core.state.engine.jobs.values()
    open_jobs = sum(1 for job in jobs if job.phase not in ENDED)
    diagnostics.say(
        f"ready {controller.endpoint} jobs={open_jobs} ended={len(jobs) - open_jobs} "
        f"entries={controller.core.journal.last_seq} recovered_s={controller.recovery_s:.2f}",
        diagnostics.STANDARD_OUTPUT,
    )
    await controller.run()
    return controller


def standby_router(settings: Settings) -> Router:
    """Listens where this machine's controller is asked. Raises RouterError, BadEndpoint, KeyProblem."""
    raise_descriptor_limit()
    endpoint = paths.controller_endpoint(settings)
    return Router(endpoint, paths.keys_dir(settings), lambda *_: None, Counter())


async def follow(
    settings: Settings, router: Router, ending: Shutdown, hold_back_s: float
) -> store.TakenOver | None:
    """Follows until it is to lead; None: it is to end."""
    place = paths.controller_journal(settings)
    database = store.open_database(place, endpoint=paths.own_endpoint(settings) or router.endpoint)
    if not isinstance(database, store.PostgresDatabase):
        raise sources.SettingsError(
            "--standby follows a journal in PostgreSQL: set controller.journal to postgresql://..., as the "
            "leader has it"
        )
    lease_s, config = settings.controller.leader_lease_s, engine_config(settings)
    ending.current = lambda: None
    while not ending.is_due:
        try:
            standby = Standby(database, router, config, lease_s, leave_to_others_s=hold_back_s)
        except store.JournalUnreachable as error:
            log.warning("%s; it tries again", error)
            await asyncio.sleep(TRY_AGAIN_S)
            continue
        ending.current = standby.stop
        diagnostics.say(f"standby {router.endpoint} journal={database.place}", diagnostics.STANDARD_OUTPUT)
        return await standby.run()
    return None


def fail(message: str, code: int) -> int:
    diagnostics.say(f"error[{'config' if code == 2 else 'failed'}]: controller: {message}")
    return code


if __name__ == "__main__":
    diagnostics.take_standard_error()
    sys.exit(main())
