"""`cotenant doctor`: checks of this machine, each with what was found and what to do about it."""
