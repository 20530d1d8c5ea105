"""The first nine minutes on a GPU: one prepared script, `python -m hwtests.first.run --out FOLDER`.

Rule: what runs before cotenant is installed (the run itself, questions about CUDA and MPS) needs the standard
library alone. `questions.py` is the table, `verdicts.py` says what each answer decides.
"""
