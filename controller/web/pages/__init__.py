"""The pages of `cotenant web`, in the order of the menu. To add one, add its module, its template, and its
line below."""

from typing import Final

from cotenant.controller.web.page import Page
from cotenant.controller.web.pages import devices, ended, job, policy, queue, report, timeline, usage, what_if

PAGES: Final[tuple[Page, ...]] = (
    queue.PAGE,
    ended.PAGE,
    devices.PAGE,
    timeline.PAGE,
    report.PAGE,
    usage.PAGE,
    what_if.PAGE,
    policy.PAGE,
    job.PAGE,
)
