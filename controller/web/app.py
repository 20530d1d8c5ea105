"""The application: a route for each page, one for its news, and the entrance.

Rule: nothing here knows a page. What all of them have in common is here: the controller may be silent or say
no, and a page says so in words.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from cotenant.controller.client.connection import Refusal, Unreachable
from cotenant.controller.client.silence import trouble_in_words
from cotenant.controller.domain import texts
from cotenant.controller.web import rendering
from cotenant.controller.web.access import ENTRANCE, LINK_S, OUR_NAMES, Access, RequestCheck, is_ahead
from cotenant.controller.web.connections import Connections, Seen, watch
from cotenant.controller.web.page import Page, Params, ShownElsewhere, surroundings
from cotenant.controller.web.pages import PAGES
from cotenant.controller.web.strangers import Strangers

STATUS: Final = {"not-found": 404, "not-allowed": 403, "usage": 400, "refused": 409}
"""By the code of a refusal."""
QUERY_MAX: Final = 20
NO_LINK: Final = (
    f"this link has been used, or is older than {LINK_S / 60:g} minutes, or not of this server; "
    "`cotenant web --link` makes another"
)
SEEN: Final = "seen"
"""In the address of news: the page that they go on from."""


def application(
    connections: Connections,
    access: Access,
    cookie_name: str,
    *,
    names: Sequence[str] = OUR_NAMES,
    strangers: Strangers | None = None,
    on_enter: Callable[[], None] = lambda: None,
) -> Starlette:
    """`on_enter` hears of each browser that a link has let in."""
    routes: list[Any] = [
        Route("/", lambda request: RedirectResponse(PAGES[0].path)),
        Route(ENTRANCE, enter),
        Mount("/static", StaticFiles(directory=rendering.FOLDER / "static")),
    ]
    for page in PAGES:
        # Its own routes first: they may be below its path.
        routes += [
            *page.routes,
            Route(page.path, page_endpoint(page)),
            Route(f"/live{page.path}", news_endpoint(page)),
        ]
    app = Starlette(
        routes=routes,
        lifespan=lambda app: watching(connections, strangers or Strangers()),
        middleware=[Middleware(RequestCheck, access=access, cookie_name=cookie_name, names=names)],
        exception_handlers={Refusal: answer_refusal, Unreachable: away, ShownElsewhere: shown_elsewhere},
    )
    app.state.pages = [each for each in PAGES if each.is_in_menu]
    app.state.access, app.state.connections, app.state.cookie_name = access, connections, cookie_name
    app.state.on_enter = on_enter
    app.state.streams, app.state.is_ending = 0, lambda: False
    return app


@asynccontextmanager
async def watching(connections: Connections, strangers: Strangers) -> AsyncIterator[dict[str, Any]]:
    """What it yields reaches each connection (`BoundedProtocol`)."""
    task = asyncio.create_task(watch(connections))
    try:
        yield {"strangers": strangers}
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def enter(request: Request) -> Response:
    """Opens a session for whoever follows the link. No redirect: a browser that came from elsewhere would
    keep the new cookie back."""
    if is_ahead(request):
        return PlainTextResponse("this link opens when a person follows it", 503)
    cookie = request.app.state.access.enter(request.query_params.get("token", ""))
    if cookie is None:
        return PlainTextResponse(NO_LINK, 401)
    request.app.state.on_enter()
    answer = HTMLResponse(rendering.whole("enter", {"path": PAGES[0].path}))
    answer.set_cookie(request.app.state.cookie_name, cookie, httponly=True, samesite="strict", path="/")
    return answer


async def answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    failure = error.failure
    text = {"message": texts.one_line(failure.message), "hint": texts.one_line(failure.hint)}
    return HTMLResponse(
        rendering.whole("refused", {**surroundings(request), **text}), STATUS.get(failure.code, 500)
    )


async def shown_elsewhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShownElsewhere)
    return RedirectResponse(error.address, 303)


async def away(request: Request, error: Exception) -> Response:
    """Answers a change, a question or a download whose controller is away: nothing is known to have been
    done."""
    text = {"message": texts.one_line(str(error)), "hint": "go back, see what the page says, and try again"}
    return HTMLResponse(rendering.whole("refused", {**surroundings(request), **text}), 503)


def params_of(request: Request) -> Params:
    given = request.query_params.items()
    query = sorted((name, value) for name, value in given if value and name != SEEN)
    path = sorted((name, str(value)) for name, value in request.path_params.items())
    return Params(tuple(path), tuple(query[:QUERY_MAX]))


def context(request: Request, page: Page, params: Params, seen: Seen) -> Mapping[str, Any]:
    given = page.fill(seen.view, params)
    told = {"title": page.title, "params": params, "trouble": trouble(seen)}
    return {**surroundings(request, page), **told, **given}


def news_of(request: Request, page: Page, params: Params, seen: Seen) -> str:
    """The address where a page's news are; empty: the page has none."""
    if not page.parts:
        return ""
    address = page.path.format_map({name: quote(value, safe="") for name, value in params.path})
    begin = request.app.state.connections.note_served(page, params, seen)
    return f"/live{address}?{urlencode([*params.query, (SEEN, begin)])}"


def trouble(seen: Seen) -> str:
    return "" if seen.trouble is None else texts.one_line(trouble_in_words(seen.trouble, seen.age_s()))


def page_endpoint(page: Page) -> Any:
    """The page as a whole."""

    async def answer(request: Request) -> Response:
        params = params_of(request)
        seen = await request.app.state.connections.look(page, params)
        if seen.view is None:
            told = {
                **surroundings(request, page),
                "title": page.title,
                "trouble": texts.one_line(str(seen.trouble)),
            }
            return HTMLResponse(rendering.whole("silent", told), 503)
        told = {**context(request, page, params, seen), "live": news_of(request, page, params, seen)}
        return HTMLResponse(rendering.whole(page.name, told))

    return answer


def news_endpoint(page: Page) -> Any:
    """The endpoint that sends a page's news."""

    async def answer(request: Request) -> Response:
        state, params = request.app.state, params_of(request)
        if state.streams >= rendering.STREAMS_MAX:
            return PlainTextResponse(f"{rendering.STREAMS_MAX} pages are open already; close one", 503)

        async def looks() -> AsyncIterator[dict[str, str]]:
            while True:
                try:
                    seen = await state.connections.look(page, params)
                except (Refusal, ShownElsewhere) as error:  # Such as of a job that is forgotten by now.
                    yield {"trouble": rendering.part("base", "trouble", {"trouble": str(error)})}
                    return
                yield parts(request, page, params, seen)
                await asyncio.sleep(page.every_s)

        first = state.connections.find_begun(page, params, request.query_params.get(SEEN, ""))
        begin = {} if first is None else parts(request, page, params, first)

        async def counted() -> AsyncIterator[str]:
            state.streams += 1
            try:
                async for text in rendering.stream(looks, state.is_ending, begin):
                    yield text
            finally:
                state.streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream")

    return answer


def parts(request: Request, page: Page, params: Params, seen: Seen) -> dict[str, str]:
    told = {"trouble": rendering.part("base", "trouble", {"trouble": trouble(seen)})}
    if seen.view is not None and seen.trouble is None:
        given = context(request, page, params, seen)
        told |= {name: rendering.part(page.name, name, given) for name in page.parts}
    return told
