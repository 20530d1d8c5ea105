#!/usr/bin/env bash
# Installs what the kit carries beside this machine's torch, and runs the study: ./run.sh [options of the study]
#
# Rule: no network and no root. The environment sees the machine's packages, for its torch; what the kit carries
# goes before them. PYTHON names the interpreter that has torch (3.11 or 3.12).
set -euo pipefail

cd "$(dirname "$0")"
python=${PYTHON:-python3}
site=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).resolve().parents[1])') || {
    echo "gpu-kit: $python cannot import torch; say which Python can: PYTHON=/path/to/python3 ./run.sh" >&2
    exit 1
}
if [ ! -e .venv/.installed ]; then
    rm -rf .venv
    "$python" -m venv --system-site-packages .venv
    .venv/bin/python -m pip install -q --disable-pip-version-check --no-index --find-links wheels \
        --ignore-installed cotenant pytest
    # Where torch lives in an environment of its own, it is no system package.
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' |
        while read -r folder; do echo "$site" >"$folder/torch-of-this-machine.pth"; done
    touch .venv/.installed
fi
COTENANT_COMMIT=$(cat COMMIT) DEMO_DIGITS=$PWD/digits.csv.gz \
    exec .venv/bin/python -m experiments.gpu_study.study --out results "$@"
