# Two commands matter: `make demo` and `make test`. Both set up .venv first. `make help` lists the rest.

VENV  := .venv
READY := $(VENV)/.installed
RUN   := $(VENV)/bin/python tests/run.py

export PYTHON ?= python3
# An extra package index that offers torch's CPU build, for machines without an NVIDIA driver.
export TORCH_INDEX ?=

# How many seeds `make soak` tries, and the first of them.
SEEDS ?= 2000
FIRST ?= 0

# How long the blows of `make chaos` fall, its seed, and whether they fall on two controllers and PostgreSQL.
SEED ?= 0
HA   ?=
chaos: MINUTES = 5

# How long `make results-lazer` and `make results-castor` may begin new runs.
MINUTES ?= 100000

# A trace of gangs as wide as its cluster, for `make results-patient`.
WIDE ?=

# Where `make gpu-study` keeps what it measured, which slice runs (a number or a name; none: all, in order), and
# further options: STUDY='--device cpu --rehearse', HWTESTS='--allow-faults', and of `make gpu-first` ASK='--allow-faults'
OUT     ?= gpu-study
SLICE   ?=
STUDY   ?=
HWTESTS ?=
ASK     ?=

# Those that are programs.
BENCHES := $(shell grep -l __main__ bench/*.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint unit unchanged simulation live hwtests gpu-first gpu-study gpu-kit wheel-test soak chaos bench \
    results-default results-lazer results-castor results-patient results-cotenant results-gfs results-rltune \
    results-placement results-pcs results-elastic results-eta clean

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	    || sed -n 's/^\([a-z-]*\):.*## /  make \1   /p' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv and install the pinned requirements.

$(READY): requirements-dev.txt pyproject.toml .ci/venv
	@.ci/venv $(VENV)
	@touch $@

demo: $(READY) ## Real DDP jobs share a device, one is preempted and resumes; writes demo-out/.
	@$(VENV)/bin/cotenant demo --out demo-out

test: $(READY) ## Every check: format, lint, types, unit, processes, wheel, unchanged, simulation, live, the rehearsal of `gpu-study`.
	@$(RUN)

lint: $(READY) ## Format, lint and types only.
	@$(RUN) format lint types

unit: $(READY) ## Unit tests and properties, each once (those of `make wheel-test` too), with coverage.
	@$(RUN) unit processes wheel coverage

simulation: $(READY) ## Whole-cluster simulation over 200 seeds.
	@$(RUN) simulation

unchanged: $(READY) ## Every script that we have, by itself and as a job: what differs. Takes ten minutes.
	@$(VENV)/bin/python -m tests.unchanged

live: $(READY) ## Real controller, agents, supervisors and jobs; the rehearsal of `gpu-study`.
	@$(RUN) live rehearsal

hwtests: $(READY) ## What only a CUDA machine can show, in slices of eight minutes that resume: make hwtests SLICE=1
	@$(VENV)/bin/python -m hwtests.suite $(if $(SLICE),--slice $(SLICE)) $(HWTESTS)

gpu-first: OUT = gpu-first
gpu-first: $(READY) ## The first nine minutes on a GPU, most telling questions first; writes OUT/page.md: make gpu-first ASK=--allow-faults
	@$(VENV)/bin/python -m hwtests.first.run --out $(OUT) $(ASK)

gpu-study: $(READY) ## The pre-registered study of one GPU, in such slices; writes OUT/page.md: make gpu-study OUT=gpu-study SLICE=1
	@$(VENV)/bin/python -m experiments.gpu_study.study --out $(OUT) $(if $(SLICE),--slice $(SLICE)) $(STUDY)

gpu-kit: $(READY) ## dist/gpu-kit: gpu-first and the study to carry to a machine without network or root, under 60 MiB.
	@$(VENV)/bin/python -m experiments.gpu_study.kit

wheel-test: $(READY) ## Build the wheel; in a fresh environment: a job, and what is found or started by where we are.
	@$(RUN) wheel

soak: $(READY) ## Cluster simulation over many seeds: make soak SEEDS=5000 FIRST=1000
	@$(RUN) soak --seeds $(SEEDS) --first-seed $(FIRST)

bench: $(READY) ## Measure everything in bench/; each script says what it measured and on which machine.
	@set -e; for script in $(BENCHES); do echo "== $$script"; $(VENV)/bin/python $$script; done

chaos: $(READY) ## A storm on real jobs of two hosts: kills, freezes, jumping clocks: make chaos MINUTES=5 SEED=3
	@$(VENV)/bin/python -m tests.live.$(if $(HA),failover_storm,storm) --minutes $(MINUTES) --seed $(SEED)

results-lazer: $(READY) ## experiments/results/lazer.md: simulate what is missing (MINUTES=25 stops then; run it again to go on).
	@$(VENV)/bin/python experiments/lazer/results_lazer.py --minutes $(MINUTES)

results-castor: $(READY) ## experiments/results/castor.md (simulated; MINUTES as above) and castor-predictor.md, from ../shared.
	@$(VENV)/bin/python experiments/castor/results_castor.py --minutes $(MINUTES)
	@$(VENV)/bin/python experiments/castor/results_predictor.py

results-patient: $(READY) ## experiments/results/patient.md: simulate what is missing; WIDE=FILE adds a trace of wide gangs.
	@$(VENV)/bin/python experiments/patient/results_patient.py $(if $(WIDE),--wide $(WIDE))

results-cotenant: $(READY) ## experiments/results/cotenant.md: our own policy against patient, srtf and castor-cost; MINUTES as above.
	@$(VENV)/bin/python experiments/cotenant/results_cotenant.py --minutes $(MINUTES)

results-default: $(READY) ## experiments/results/default.md: the default against fifo, EASY, tiresias and patient; MINUTES as above.
	@$(VENV)/bin/python experiments/default/results_default.py --minutes $(MINUTES)

results-gfs: $(READY) ## experiments/results/gfs.md (simulated; MINUTES as above) and gfs-forecast.md (demand of ../shared; ten CPU minutes).
	@$(VENV)/bin/python experiments/gfs/scheduling.py --minutes $(MINUTES)
	@$(VENV)/bin/python experiments/gfs/forecast.py

results-rltune: $(READY) ## experiments/results/rltune.md: simulate what is missing (MINUTES as above), then write the page.
	@$(VENV)/bin/python experiments/rltune/results_rltune.py --minutes $(MINUTES)

results-placement: $(READY) ## experiments/results/placement.md: waiting jobs placed together, beside best fit; MINUTES as above.
	@$(VENV)/bin/python experiments/rltune/placement.py --minutes $(MINUTES)

results-pcs: $(READY) ## experiments/results/pcs.md: PCS's figures in the fluid world; half a CPU hour.
	@$(VENV)/bin/python experiments/pcs/results_pcs.py

results-elastic: $(READY) ## experiments/results/elastic.md: policies that resize jobs, beside rigid ones; MINUTES as above.
	@$(VENV)/bin/python experiments/elastic/results_elastic.py --minutes $(MINUTES)

results-eta: $(READY) ## experiments/results/eta.md: are ETAs right? Simulates what is missing; MINUTES as above.
	@$(VENV)/bin/python experiments/eta/results_eta.py --minutes $(MINUTES)

clean: ## Remove what was built or measured; .venv stays.
	rm -rf build dist demo-out *.egg-info .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
