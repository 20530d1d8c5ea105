"""What a page is made of.

Rule: `look` asks and decides nothing; `fill` is pure. Whatever is the same for all pages (safety, news,
what is shown while the controller is silent) is not a page's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from starlette.requests import Request
from starlette.routing import BaseRoute

from cotenant.controller.web.samples import Samples
from cotenant.controller.web.simulations import Simulations
from cotenant.controller.wire import clients

Answer = TypeVar("Answer")


class Asking(Protocol):
    """A connection to the controller, with its user's own rights."""

    samples: Samples
    """What was seen of jobs that run, before now as well."""
    simulations: Simulations
    """What is simulated, and what came of it."""

    def ask(self, body: clients.Question[Answer], timeout_s: float | None = None) -> Answer:
        """Asks the controller and returns the answer. Raises Unreachable, Refusal."""
        ...

    def keep(self, name: str, act: Callable[[], Answer]) -> Answer:
        """What `act` brings, or brought a while ago: the longer it takes, the longer it is kept."""
        ...


class ShownElsewhere(Exception):
    """What was asked for has no page of its own; `address` is the page that shows it."""

    def __init__(self, address: str) -> None:
        super().__init__(f"it is shown at {address}")
        self.address = address


class Params(NamedTuple):
    """What the address says, in an order of its own: equal addresses share answers."""

    path: tuple[tuple[str, str], ...] = ()
    query: tuple[tuple[str, str], ...] = ()

    def get(self, name: str, default: str = "") -> str:
        return dict((*self.query, *self.path)).get(name, default)


@dataclass(frozen=True, kw_only=True)
class Page:
    name: str
    """Its template is `<name>.html`, and its entry in the menu is marked while it is open."""
    title: str
    path: str
    """Such as `/jobs/{job_id}`; what is in braces is in `Params.path`."""
    look: Callable[[Asking, Params], Any]
    """Asking what it needs, in a thread of its own; raises what asking raises, and ShownElsewhere."""
    fill: Callable[[Any, Params], Mapping[str, Any]]
    """What was answered, as its template wants it."""
    parts: tuple[str, ...] = ()
    """Blocks of its template that are sent again when they have changed."""
    every_s: float = 1.0
    """Between two looks while somebody has it open."""
    is_in_menu: bool = True
    routes: tuple[BaseRoute, ...] = ()
    """Downloads, and changes: each of those made with `changes.change`."""


FORM_TOKEN: Final = "form_token"
"""The field of a form that shows that it is ours."""


def surroundings(request: Request, page: Page | None = None) -> dict[str, Any]:
    """What `base.html` needs, and every form."""
    state = request.app.state
    return {
        "pages": state.pages,
        "page": page,
        "live": "",
        "trouble": "",
        "form_token_name": FORM_TOKEN,
        "form_token": state.access.form_token(request.state.cookie),
    }
