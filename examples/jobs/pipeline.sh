#!/bin/bash
# Train, then look at the result: the second job waits for the first, and is never started if that one fails.
set -e
train=$(cotenant submit examples/jobs/digits.yaml)
after=$(cotenant submit --after "$train" --name look -- cotenant show "$train")
cotenant wait "$train" "$after"
cotenant logs "$after"
