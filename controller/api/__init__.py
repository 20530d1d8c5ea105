"""The controller's API: handlers check and answer users' requests, views are what users are shown."""

# fmt: off
from cotenant.controller.api import metrics
from cotenant.controller.api.etas import hit_rate
from cotenant.controller.api.handlers import JournalQueries, RequestHandlers
from cotenant.controller.api.job_settings import change_spec
from cotenant.controller.api.leading import LeadershipNews, LeadershipRequests, LeadershipWatch
from cotenant.controller.api.logs import logs_of
from cotenant.controller.api.metrics import ClusterMetrics, ServerFacts
from cotenant.controller.api.moment import Now
from cotenant.controller.api.permissions import (
    BYTES_BURST, BYTES_PER_SECOND, Rates, must_be_admin, policies_offered,
)
from cotenant.controller.api.queries import About, pair_views
from cotenant.controller.api.sharing import views_of
from cotenant.controller.api.submissions import Code, Denied
from cotenant.controller.api.trees import TreeRequests
from cotenant.controller.api.views import link_of, note_text

__all__ = [
    "BYTES_BURST", "BYTES_PER_SECOND", "About", "ClusterMetrics", "Code", "Denied", "JournalQueries",
    "LeadershipNews", "LeadershipRequests", "LeadershipWatch", "Now", "Rates", "RequestHandlers",
    "ServerFacts",
    "TreeRequests",
    "hit_rate", "link_of", "logs_of", "metrics", "must_be_admin", "note_text", "pair_views",
    "policies_offered",
    "change_spec", "views_of",
]
# fmt: on
