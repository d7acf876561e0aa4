"""From a model, a card and a load to replicas and dollars: the planner of notebook 14b."""
