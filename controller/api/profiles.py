"""What is kept of kinds of jobs: shown to whom it belongs, forgotten when they say so."""

from __future__ import annotations

from statistics import median
from typing import Final

import msgspec

from cotenant.controller.api.submissions import Denied
from cotenant.controller.api.views import Now
from cotenant.controller.domain import KEY_CHARACTERS, LOAD_S, Gang, ProfilesForgotten, StoredProfile
from cotenant.controller.store import Core
from cotenant.controller.system.keys import Identity
from cotenant.controller.wire import MESSAGE_BYTES_MAX, profile_view, throughput_view
from cotenant.controller.wire import clients as wire

LIST_BYTES_MAX: Final = MESSAGE_BYTES_MAX * 3 // 4


class ProfileRequests:
    """Reads the engine's store; changes it by an event, like everything."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def known(self, request_id: int, request: wire.ListProfiles, who: Identity) -> wire.KnownProfiles:
        engine = self._core.state.engine
        mine = self._of(who)
        now = Now(self._core.clock.now_s(), self._core.clock.wall())
        shown: list[wire.KnownProfile] = []
        size = 0
        for key, known in reversed(mine.items()):  # What was used last matters most.
            view = known_view(key, known, now)
            size += len(msgspec.msgpack.encode(view))
            if size > LIST_BYTES_MAX:
                break
            shown.append(view)
        loads = engine.loads_seen()
        return wire.KnownProfiles(
            request_id=request_id,
            profiles=tuple(reversed(shown)),
            profile_s=engine.config.profile_s,
            load_s=median(loads) if loads else LOAD_S,
            more=len(mine) - len(shown),
        )

    def forget(self, request_id: int, request: wire.ForgetProfiles, who: Identity) -> wire.Done:
        mine = self._of(who)
        keys = request.keys or tuple(mine)
        unknown = [key for key in keys if key not in mine]
        if unknown:
            hint = "`cotenant profile list` shows those that you may forget"
            raise Denied("not-found", f"no profile {', '.join(unknown[:10])}", hint)
        if keys:
            self._core.happen(ProfilesForgotten(keys=keys, by=who.name))
            self._core.audit(who, "forget-profiles", ",".join(keys)[:200])
        return wire.Done(
            request_id=request_id, lines=tuple(f"profile {key} is forgotten" for key in keys[:50])
        )

    def _of(self, who: Identity) -> dict[str, StoredProfile]:
        known = self._core.state.engine.known_profiles
        return {key: each for key, each in known.items() if who.role == "admin" or each.user == who.name}


def known_view(key: str, known: StoredProfile, now: Now) -> wire.KnownProfile:
    gang = Gang(devices=max(known.gpus, known.hosts), hosts=known.hosts)
    return wire.KnownProfile(
        key=key,
        kind=known.base[:KEY_CHARACTERS],
        user=known.user,
        name=known.name,
        command=known.command,
        gpus=known.gpus,
        hosts=known.hosts,
        device_type=known.device_type,
        batch_size=known.batch_size,
        is_complete=known.is_complete,
        learned_at=now.utc(known.learned_s),
        used=known.used,
        job_id=known.job_id,
        **msgspec.structs.asdict(profile_view(known.profile)),
        throughput=throughput_view(known.profile, known.batch_size, gang),
    )
