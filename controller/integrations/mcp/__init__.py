"""`cotenant mcp`: the command line for programs that speak the Model Context Protocol.

- `verb.py` is the verb; `server.py` makes tools of the functions in `questions.py` and `changes.py`.
- `bounds.py` keeps answers short.
"""
