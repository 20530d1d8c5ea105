"""The agent of a host: it starts, watches and ends the attempts that the controller asks for."""
