"""Who carries out what the engine decides, one package for each kind."""
