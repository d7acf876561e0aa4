"""Of Part II: the pipeline."""
