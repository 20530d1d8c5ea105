"""Brings a job's image to this host before its attempt starts, and says why a container would not be safe.

Rule: each user's images are their own, as podman keeps them; one that is here is never pulled again, and two
jobs that wait for one image pull it once. An attempt that waits has no supervisor that watches its lease, so
this does: it does not start once its lease has run out.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from cotenant.agent.containers.command_lines import client_of
from cotenant.agent.containers.processes import client_environment, users_rights
from cotenant.agent.containers.runtimes import runtime_for, why_unsafe
from cotenant.agent.daemon.core.remembered import AttemptKey
from cotenant.agent.ipc.records import ContainerRuntime, Order
from cotenant.checkpoint.talk.protocol import ENV_KEY
from cotenant.controller.domain import Container, JobId, Mount, texts
from cotenant.controller.system.endpoint import socket_path

LINE_CHARS_MAX: Final = 120
OUTPUT_BYTES_MAX: Final = 64 * 1024
_LOADED: Final = re.compile(r"Loaded image(?:\(s\)| ID)?: *(\S+)")
_NO_SUCH_IMAGE: Final = re.compile(
    r"manifest unknown|not found|denied|unauthorized|invalid reference|did not resolve|no such file|payload"
)
"""In a registry's or archive's answer: there is no such image for this user on any host."""
_IS_READABLE: Final = 'for each; do [ -r "$each" ] || { echo "$each"; exit 1; }; done'

_REAL_PATH: Final = 'readlink -f -- "$1"'


class NoImage(Exception):
    """Why an attempt has no container to run in. `is_users`: it would have none on any host."""

    def __init__(self, why: str, *, is_users: bool = False) -> None:
        super().__init__(why)
        self.is_users = is_users


class Images:
    """The images of this host's jobs."""

    def __init__(
        self, runtimes: tuple[ContainerRuntime, ...], *, lease_left_s: Callable[[], float | None]
    ) -> None:
        """Prepares to bring images. `lease_left_s`: of this host; None: it needs none."""
        self._runtimes, self._lease_left_s = runtimes, lease_left_s
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._loaded: dict[tuple[int, str, str], str] = {}
        """Names of archives that were loaded, by user, path and time of change."""
        self._came: dict[JobId, tuple[float, str]] = {}
        """Since when jobs wait, and the last line of what brings their images."""
        self.preparing: dict[AttemptKey, asyncio.Task[None] | None] = {}
        """The tasks of attempts that wait for their images."""

    @property
    def progress(self) -> dict[JobId, str]:
        """How far the images have come that jobs wait for."""
        now_s = time.monotonic()
        return {
            job_id: f"{line} (for {now_s - from_s:.0f} s)" for job_id, (from_s, line) in self._came.items()
        }

    async def prepare(self, order: Order, container: Container) -> Order:
        """The order with the program that starts its containers, and the image as that program knows it.

        Its mounts are the paths that their links lead to, so that what was judged is what is mounted.

        Raises:
            NoImage: the image cannot be brought here, or a container would not be safe.
        """
        attempt = (order.job_id, order.attempt)
        self.preparing[attempt] = asyncio.current_task()
        self._came[order.job_id] = (time.monotonic(), "waits for another job's pull of it")
        lock = self._locks.setdefault((order.launch.uid, container.image), asyncio.Lock())
        try:
            runtime = self._runtime(order, container)
            async with asyncio.timeout(order.start_deadline_s):
                container = await self._judge_mounts(order, container)
                to_controller = await self._paths_to_controller(order)
                async with lock:
                    image = await self._bring(order, container, runtime)
        except TimeoutError:
            raise NoImage(
                f"the image {container.image} was not here after {order.start_deadline_s:.0f} s "
                "(agent.start_deadline_s)"
            ) from None
        except OSError as error:
            raise NoImage(f"{error.filename}: {error.strerror} on {order.host_id}") from None
        finally:
            del self.preparing[attempt], self._came[order.job_id]
        left_s = self._lease_left_s()
        if left_s is not None and left_s <= 0.0:
            raise NoImage("its lease ran out while its image was pulled")
        launch = msgspec.structs.replace(order.launch, container=container)
        return msgspec.structs.replace(
            order,
            lease_s=left_s,
            start=msgspec.structs.replace(order.start, launch=launch),
            runtime=msgspec.structs.replace(runtime, image=image, to_controller=to_controller),
        )

    def _runtime(self, order: Order, container: Container) -> ContainerRuntime:
        """The program to use. Raises NoImage: there is none, or it would not be safe."""
        launch, host = order.launch, order.host_id
        on_gpus = any(rank.cuda_uuids for rank in order.ranks)
        runtime = runtime_for(container, self._runtimes, on_gpus=on_gpus)
        if launch.uid == 0:
            raise NoImage(
                "root's containers would be root on the host: submit as another user", is_users=True
            )
        if runtime is None:
            raise NoImage(f"{host} has no program that could start its container")
        user = client_environment(launch.uid).get("USER", "")
        if why := why_unsafe(runtime, launch.uid, user, launch.groups):
            raise NoImage(f"{why} on {host}")
        return runtime

    async def _judge_mounts(self, order: Order, container: Container) -> Container:
        """The container with the mounts' sources as their links lead; its working directory is judged too.

        Raises:
            NoImage: one cannot be read, or leads to where no mount may.
        """
        paths = [each.source for each in container.mounts]
        paths += [container.image] if container.is_file else []
        if said := await self._unreadable(order, paths):
            path = said[:LINE_CHARS_MAX]
            raise NoImage(f"its user cannot read {path} on {order.host_id} (--mount, --image)", is_users=True)
        workdir = order.launch.workdir
        if order.launch.snapshot is None:
            await self._judge(order, "its working directory", workdir, workdir)
        mounts = [
            await self._judge(order, "--mount", each.source, each.target, read_only=each.read_only)
            for each in container.mounts
        ]
        return msgspec.structs.replace(container, mounts=tuple(mounts))

    async def _judge(
        self, order: Order, what: str, source: str, target: str, *, read_only: bool = False
    ) -> Mount:
        code, said = await self._run(order, ["/bin/sh", "-c", _REAL_PATH, "sh", source])
        real = source if code else said  # What is not there is said where it is used.
        try:
            return Mount(source=real, target=target, read_only=read_only)
        except ValueError as error:
            why = f"{source} leads to {real[:LINE_CHARS_MAX]} on {order.host_id}, and a mount {error}"
            raise NoImage(f"{what}: {why}", is_users=True) from None

    async def _paths_to_controller(self, order: Order) -> tuple[str, ...]:
        """What of the host its containers show so that command lines in them can ask the controller; empty:
        its user has nothing of that here."""
        socket = socket_path(order.controller) if order.controller else None
        # The folder, for a controller that starts again has a new socket.
        path = order.secrets.get(ENV_KEY, "") if socket is None else str(socket.parent)
        return () if not path or await self._unreadable(order, [path]) else (path,)

    async def _unreadable(self, order: Order, paths: list[str]) -> str:
        """The first of the paths that the job's user cannot read; empty: there is none."""
        code, said = await self._run(order, ["/bin/sh", "-c", _IS_READABLE, "sh", *paths])
        return said if code else ""

    # --- Bringing it --------------------------------------------------------------------------------

    async def _bring(self, order: Order, container: Container, runtime: ContainerRuntime) -> str:
        """The image as the program knows it, pulled or loaded if it is not here yet."""
        image, client = container.image, client_of(runtime)
        if runtime.name == "apptainer":
            if image.endswith(".sif"):
                return image
            return f"docker-archive:{image}" if container.is_file else f"docker://{image}"  # In its cache.
        probe = [*client, "image", "exists" if runtime.name == "podman" else "inspect"]
        if not container.is_file:
            if (await self._run(order, [*probe, image]))[0]:
                await self._work(order, "pull", [*client, "pull", image])
            return image
        code, changed = await self._run(order, ["stat", "--dereference", "--format=%.Y", "--", image])
        if code:
            raise NoImage(f"its user cannot look at {image} on {order.host_id}: {changed}", is_users=True)
        key = (order.launch.uid, image, changed)
        known = self._loaded.get(key)
        if known is None or (await self._run(order, [*probe, known]))[0]:
            said = await self._work(order, "load", [*client, "load", "--input", image])
            if not (found := _LOADED.search(said)):
                why = f"{image} holds no image that {runtime.name} knows: {said[-LINE_CHARS_MAX:]}"
                raise NoImage(why, is_users=True)
            known = self._loaded[key] = found[1]
        return known

    async def _work(self, order: Order, doing: str, command: list[str]) -> str:
        """Brings an image by a command, and returns what it said. Raises NoImage: it failed."""
        code, said = await self._run(order, command, doing)
        if code == 0:
            return said
        last = said.splitlines()[-1] if said else f"exit code {code}"
        image = order.launch.container.image if order.launch.container else ""
        is_users = _NO_SUCH_IMAGE.search(said) is not None
        why = f"cannot {doing} the image {image} on {order.host_id}: {last[:400]}"
        if not is_users and doing == "pull":
            why += "; where no registry answers, give a file of `podman save`: --image FILE.tar"
        raise NoImage(why, is_users=is_users)

    async def _run(self, order: Order, command: list[str], doing: str = "") -> tuple[int, str]:
        """The exit code of a command as the job's user, and the end of what it said."""
        launch = order.launch
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd="/",
                env=client_environment(launch.uid),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                **users_rights(launch),
            )
        except OSError as error:
            raise NoImage(f"cannot execute {command[0]} on {order.host_id}: {error.strerror}") from None
        except ValueError as error:  # A zero byte in the image's name, say.
            raise NoImage(f"cannot execute {command[0]} for its image: {error}", is_users=True) from None
        assert process.stdout is not None
        said = b""
        try:
            while data := await process.stdout.read(4096):
                said = (said + data)[-OUTPUT_BYTES_MAX:]
                if doing:
                    last = said.decode(errors="replace").strip().splitlines()[-1:]
                    line = texts.one_line(f"{doing}ing: {''.join(last)}")[:LINE_CHARS_MAX]
                    self._came[order.job_id] = (self._came[order.job_id][0], line)
            return await process.wait(), said.decode(errors="replace").strip()
        finally:
            if process.returncode is None:  # We were cancelled.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
