# Sourced in the kit: sets `python` to the interpreter to use, the first that has torch. PYTHON names another.
#
# Rule: torch is looked for and not imported, which takes seconds. Without torch any Python that the kit has wheels
# for is taken: `python_has_torch` is then empty.

fits='import sys, importlib.util as look
sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)) or (len(sys.argv) > 1 and look.find_spec("torch") is None))'
python='' python_has_torch=''
for each in ${PYTHON:-python3.12 python3.11 python3 python /opt/conda/bin/python /opt/venv/bin/python}; do
    if "$each" -c "$fits" torch 2>/dev/null; then
        python=$each python_has_torch=yes
        break
    elif [ -z "$python" ] && "$each" -c "$fits" 2>/dev/null; then
        python=$each
    fi
done
if [ -z "$python" ]; then
    echo "gpu-kit: no Python 3.11 or 3.12 here; name one that has torch: PYTHON=/path/to/python3 $0" >&2
    exit 1
fi
