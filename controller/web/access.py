"""Who may see the page, and change anything: the one-time link, the sessions it opens, what every request
must have and every answer carries, and what a form must carry.

Rule: a link opens one session and is void then; what is kept of a session here is only a hash of its cookie.
Nothing is written down: when the process ends every session ends. Before any page is asked, a name that is
not this machine's is refused (a foreign page whose name was made to point here would come with its own), all
but the entrance and what everybody may have needs a session, and a change must come from a page of ours. No
answer lets a browser load or send anything elsewhere. Each route that changes something is made here, so that
none forgets to ask for the form's token; what may be done by whom the controller decides.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cotenant.controller.web.page import FORM_TOKEN

SESSIONS_MAX: Final = 16
"""The oldest ends when another begins."""
SECRET_BYTES: Final = 32

OUR_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
ENTRANCE: Final = "/enter"
OPEN: Final = (ENTRANCE, "/static/")
"""Needs no session."""
SAFE: Final = ("GET", "HEAD")
NO_SESSION: Final = (
    "this needs the link that `cotenant web` printed where it was started; a link opens one browser, and the "
    "next link is printed after it. The page's server may have been started again since this was opened."
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

Changes = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""Given the form's fields."""


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


class RequestCheck:
    def __init__(self, app: ASGIApp, access: Access, cookie_name: str) -> None:
        self._app = app
        self._access = access
        self._cookie_name = cookie_name

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

        cookie = _cookie_in(headers, self._cookie_name)
        scope.setdefault("state", {})["cookie"] = cookie
        refusal = self._refusal(scope, headers, cookie)
        await (refusal or self._app)(scope, receive, sending)

    def _refusal(self, scope: Scope, headers: Headers, cookie: str) -> Response | None:
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in OUR_NAMES:
            return PlainTextResponse(f"this page answers to {', '.join(OUR_NAMES)} alone", 421)
        if scope["method"] not in SAFE and not _is_from_us(headers, host):
            return PlainTextResponse("a change must come from a page of this server", 403)
        if not scope["path"].startswith(OPEN) and not self._access.is_open(cookie):
            return PlainTextResponse(NO_SESSION, 401)
        return None


def _cookie_in(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _is_from_us(headers: Headers, host: str) -> bool:
    """As far as the browser says it; the form's own token is asked for in any case."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    return site in (None, "same-origin", "none") and origin in (None, f"http://{host}")


def change(path: str, act: Changes) -> Route:
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
    """None: it is too large, or no form."""
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
