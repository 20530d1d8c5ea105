"""Who may see the page, and change anything: the one-time link, the sessions it opens, what every request
must have and every answer carries, and what a form must carry.

Rule: a link is made when its owner asks for one, opens one session within `LINK_S`, and is void then; what is
kept of links and sessions here is only a hash of each. Nothing is written down: when the process ends every
session ends. Before any page is asked, a name that is
not this machine's is refused (a foreign page whose name was made to point here would come with its own), all
but the entrance and what everybody may have needs a session, and a change must come from a page of ours. No
answer lets a browser load or send anything elsewhere. Each route that changes something is made here, so that
none forgets to ask for the form's token; what may be done by whom the controller decides.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cotenant.controller.web.page import FORM_TOKEN
from cotenant.controller.web.strangers import LET_STAY

LINK_S: Final = 300.0
LINKS_MAX: Final = 8
"""That nobody has opened yet; the oldest is void when another is made."""
SESSIONS_MAX: Final = 16
"""The oldest ends when another begins."""
SECRET_BYTES: Final = 32
REQUESTS_MAX: Final = 64
"""Of all sessions, at a time."""

OUR_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
ENTRANCE: Final = "/enter"
AHEAD: Final = ("sec-purpose", "purpose", "x-purpose", "x-moz")
"""Headers with which a browser asks for a page ahead of its user: to prefetch, prerender or preview it."""
SAFE: Final = ("GET", "HEAD")
NO_SESSION: Final = (
    "this needs a link, which opens one browser: `cotenant web --link` makes one, on the machine where the "
    "page's server runs. That server may have been started again since this was opened."
)
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # With `no-referrer` our own forms would come with the origin `null`.
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}

FORM_BYTES_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 100

AnswersChange = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""Given the form's fields."""


class Access:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._key = secrets.token_bytes(SECRET_BYTES)
        self._links: dict[str, float] = {}
        """Until when each can be opened."""
        self._sessions: dict[str, None] = {}

    def new_token(self) -> str:
        """Makes the token of a new link: whoever has the link can open one session."""
        token = secrets.token_urlsafe(SECRET_BYTES)
        self._links[_hash_secret(token)] = self._now_s() + LINK_S
        _keep_newest(self._links, LINKS_MAX)
        return token

    def enter(self, token: str) -> str | None:
        """A cookie for whoever has the link; None: there is no such link, or no longer."""
        until_s = self._links.pop(_hash_secret(token), None)
        if until_s is None or self._now_s() > until_s:
            return None
        cookie = secrets.token_urlsafe(SECRET_BYTES)
        self._sessions[_hash_secret(cookie)] = None
        _keep_newest(self._sessions, SESSIONS_MAX)
        return cookie

    def is_open(self, cookie: str) -> bool:
        return _hash_secret(cookie) in self._sessions

    def form_token(self, cookie: str) -> str:
        """What a form of this session carries, and no other page can know."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def is_form_of(self, cookie: str, token: str) -> bool:
        return self.is_open(cookie) and hmac.compare_digest(self.form_token(cookie).encode(), token.encode())


def _hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _keep_newest(kept: dict[str, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


class RequestCheck:
    def __init__(self, app: ASGIApp, access: Access, cookie_name: str, names: Sequence[str]) -> None:
        """Puts a check before the requests to `app`. `names`: what this server is called, in lower case."""
        self._app = app
        self._access = access
        self._cookie_name = cookie_name
        self._names = names
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        assert scope["type"] == "http", "nothing else is served"
        headers = Headers(scope=scope)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered.update(HEADERS)
                answered.setdefault("cache-control", "no-store")
            await send(message)

        cookie = self._session_in(headers)
        state = scope.setdefault("state", {})
        state["cookie"] = cookie
        if cookie and LET_STAY in state:
            state[LET_STAY]()
        refusal = self._refusal(scope, headers, cookie)
        self._under_way += bool(cookie)
        try:
            await (refusal or self._app)(scope, receive, sending)
        finally:
            self._under_way -= bool(cookie)

    def _session_in(self, headers: Headers) -> str:
        """The value of our cookie that is of an open session. A browser sends the cookies of all ports of a
        host: others may be malformed, or have our cookie's name."""
        pairs = ";".join(headers.getlist("cookie")).split(";")
        named = (pair.strip().partition("=") for pair in pairs)
        ours = (value for name, _, value in named if name == self._cookie_name)
        return next((value for value in ours if self._access.is_open(value)), "")

    def _refusal(self, scope: Scope, headers: Headers, cookie: str) -> Response | None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self._names:
            return PlainTextResponse(f"this page answers to {', '.join(self._names)} alone", 421)
        if scope["method"] not in SAFE and not _is_from_us(headers, host):
            return PlainTextResponse("a change must come from a page of this server", 403)
        if not cookie and scope["path"] != ENTRANCE:
            return PlainTextResponse(NO_SESSION, 401)
        if cookie and self._under_way >= REQUESTS_MAX:
            return PlainTextResponse(f"{REQUESTS_MAX} requests are under way already; close a page", 503)
        return None


def is_ahead(request: Request) -> bool:
    """Nobody has followed the link yet: a browser or a checker of links looks what is there."""
    return request.method != "GET" or any(name in request.headers for name in AHEAD)


def _is_from_us(headers: Headers, host: str) -> bool:
    """Whether a request comes from a page of ours, as far as the browser says it; the form's own token is
    asked for in any case."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    return site in (None, "same-origin", "none") and origin in (None, f"http://{host}")


def change(path: str, act: AnswersChange) -> Route:
    """A POST of a form of ours, and nothing else."""

    async def checked(request: Request) -> Response:
        access: Access = request.app.state.access
        fields = await _fields(request)
        if fields is None:
            return PlainTextResponse(f"a form of at most {FORM_BYTES_MAX} bytes is expected", 413)
        if not access.is_form_of(request.state.cookie, fields.get(FORM_TOKEN, "")):
            return PlainTextResponse("this form is not of this session: go back, reload and try again", 403)
        return await act(request, fields)

    return Route(path, checked, methods=["POST"])


async def _fields(request: Request) -> dict[str, str] | None:
    """Reads the fields of a form. None: the body is too large, or no form."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return None
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > FORM_BYTES_MAX:
            return None
    try:
        return dict(parse_qsl(body.decode(errors="replace"), max_num_fields=FIELDS_MAX))
    except ValueError:
        return None
