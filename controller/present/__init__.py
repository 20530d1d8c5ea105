"""How things are said to people, without a terminal: the floor under command line, page and Python API."""
