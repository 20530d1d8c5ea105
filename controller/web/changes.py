"""What is changed from a page: a form that says what will happen, and its sending.

Rule: each route that changes something is made here, so that none forgets to ask for the form's token. What
may be done by whom the controller decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from cotenant.controller.web.access import Access
from cotenant.controller.web.page import FORM_TOKEN

FORM_BYTES_MAX: Final = 64 * 1024
FIELDS_MAX: Final = 100

Changes = Callable[[Request, Mapping[str, str]], Awaitable[Response]]
"""Given the form's fields."""


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
