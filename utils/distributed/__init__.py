"""What distributing a model costs, by formula; and vLLM on several processes, for real."""
