"""What results/castor.md says beside its numbers: templates, filled from the runs.

Rule: a sentence that depends on a number has it in braces, or is chosen by it.
"""

from __future__ import annotations

from typing import Final

ANSWER: Final = """Against `sjf`, which never shares, Castor as published (`castor:part=false`) changes the
    mean completion time (JCT) by {sjf}. Our `castor` changes Castor's mean JCT further by {castor}, our
    `castor-cost` by {cost}. Of the paper's {claims} claims, {held} hold on all of these samples, {some} on
    some and {none} on none."""

CLAIMS: Final = """A percentage says by how much Castor's number is lower than that of the other policy. It
    is in bold if the claim holds: the whole 95 % interval lies at least 1 % away from no difference.
    *Lowest* means lower than under every other policy of the paper on every VC. In brackets: the paper's
    percentages for Philly and Venus, or the other policy's number."""

COMPARED: Final = """Each number is divided by that of Castor as published, so below 1 is better than
    Castor: geometric means over the VCs with 95 % intervals over seeds. Every policy knows the lengths of
    jobs and the slowdown of each pair of models (`--xi measured`)."""

LEARNED: Final = """With `--xi learned` a policy assumes that a pair is slowed {default:g} times until it has
    shared. The table has the mean JCT of such runs divided by that with known pairs; above 1, not
    knowing costs time."""

TABLE_OF_PAIRS: Final = """* The paper does not publish its table of pairs. In ours, two jobs of the {models}
    models run at {each:.2f} of their own pace on average when they share, and get {both:.2f} times as much
    done as by taking turns; {worse:.0f} % of the pairs get less done."""

LUCID: Final = """* Here {light} of {models} models count as light for Lucid, so it lets {shared:.0f} %
    of the jobs share. Where it shares nothing it decides as `ssf` does."""

LAST: Final = """* Makespans depend on the last long job: had no job ever waited, the last one would have
    ended after {least:.0f} to {most:.0f} % of `sjf`'s makespan. The jobs of the paper's testbed are far
    more alike (200 to 2,000 iterations)."""

HOW: Final = """The policies ran in the simulator on samples of real traces; only the slowdowns of pairs
    come from GPUs (V100s, measured by Gavel's authors). A seed draws {small} or {large} jobs from each VC's
    {philly_h:g} h ({venus_h:g} h for Venus) with the most submitted GPU time, and a model for each. Philly
    runs on {philly_hosts} hosts of {philly_gpus} GPUs, Venus on {venus_hosts} of {venus_gpus}. {left_out}
    VCs are left out: with {small} jobs their load is below {least_load:g}, and hardly any job waits. The
    traces say nothing about memory, so every two jobs fit."""

RUNS: Final = """`make results-castor` makes this page: {runs:,} runs, {seeds}. Intervals are Student's, and
    each ratio compares runs of the same seed. The paper's numbers are from {source}."""
