"""What every verb shares: asking the controller, printing tables and errors, help pages, daemons, keys."""
