"""Of Part I: the engine."""
