"""What daemon and supervisors say to each other: files in an attempt's folder, messages on its socket."""
