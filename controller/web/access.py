"""Who may see the page: the one-time link, the sessions it opens, and what a form must carry.

Rule: a link opens one session and is void then; what is kept of a session here is only a hash of its cookie.
Nothing is written down: when the process ends every session ends.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

SESSIONS_MAX: Final = 16
"""The oldest ends when another begins."""
SECRET_BYTES: Final = 32


class Access:
    def __init__(self, on_link: Callable[[str], None] = lambda token: None) -> None:
        """`on_link` hears of each new one-time token, the first one included."""
        self._on_link = on_link
        self._key = secrets.token_bytes(SECRET_BYTES)
        self._sessions: dict[str, None] = {}
        self._token = ""
        self._renew()

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(SECRET_BYTES)
        self._on_link(self._token)

    def enter(self, token: str) -> str | None:
        """A cookie for whoever has the link; None: it is not the present one."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        self._sessions[_hashed(cookie)] = None
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._renew()
        return cookie

    def is_open(self, cookie: str) -> bool:
        return _hashed(cookie) in self._sessions

    def form_token(self, cookie: str) -> str:
        """What a form of this session carries, and no other page can know."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def is_form_of(self, cookie: str, token: str) -> bool:
        return self.is_open(cookie) and hmac.compare_digest(self.form_token(cookie).encode(), token.encode())


def _hashed(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()
