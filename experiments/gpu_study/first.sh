#!/usr/bin/env bash
# The first nine minutes on this GPU: ./first.sh [options of hwtests/first/run.py], such as --out "$OUT/first"
#
# Rule: it needs a Python alone. What the kit carries is installed as one of its questions.
set -euo pipefail

cd "$(dirname "$0")"
. ./find_python.sh
COTENANT_COMMIT=$(cat COMMIT) exec "$python" -m hwtests.first.run --out first "$@"
