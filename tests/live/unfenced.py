"""The controller as a program, without its fence: for trying whether the judge of a storm would find that.

Rule: only a rehearsal of a storm starts it. A leader that lost its connection goes on with another, and asks
neither for the lock nor for the term.
"""

from __future__ import annotations

import sys
from typing import Any

from cotenant.controller.__main__ import main
from cotenant.controller.store import PostgresDatabase

postgres: Any = sys.modules[PostgresDatabase.__module__]


def _connect(writing: Any) -> Any:
    if writing._connection is None:
        with postgres._own_errors(writing._lose, None):
            writing._connection = writing._database.connect()
            own = "UPDATE leader SET backend = pg_backend_pid() WHERE term = %s"
            writing._connection.execute(own, (writing.term,))
    return writing._connection


if __name__ == "__main__":
    postgres.PostgresWriting._check_term = lambda *_: None
    postgres.PostgresWriting._open = _connect
    sys.exit(main())
