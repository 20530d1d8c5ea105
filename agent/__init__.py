"""The agent of a host obeys: it starts, watches and ends what the controller asks for."""
