"""One process per host: it talks to the controller and starts a supervisor per attempt."""
