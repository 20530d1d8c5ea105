"""What every request must have, and every answer carries, before any page is asked.

Rule: a name that is not this machine's is refused (a foreign page whose name was made to point here would
come with its own), all but the entrance and what everybody may have needs a session, and a change must come
from a page of ours. No answer lets a browser load or send anything elsewhere.
"""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cotenant.controller.web.access import Access

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
