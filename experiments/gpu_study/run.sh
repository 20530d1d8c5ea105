#!/usr/bin/env bash
# Installs what the kit carries beside this machine's torch, and runs the study: ./run.sh [options of the study]
#
# Rule: no network, no root, no pip (see hwtests/first/install.py). PYTHON names the interpreter that has torch.
set -euo pipefail

cd "$(dirname "$0")"
. ./find_python.sh
if [ -z "$python_has_torch" ]; then
    echo "gpu-kit: $python has no torch; say which Python has: PYTHON=/path/to/python3 ./run.sh" >&2
    exit 1
fi
own=$("$python" -m hwtests.first.install)
unset PYTHONPATH PYTHONHOME
COTENANT_COMMIT=$(cat COMMIT) DEMO_DIGITS=$PWD/digits.csv.gz \
    exec "$own" -m experiments.gpu_study.study --out results "$@"
