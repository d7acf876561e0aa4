"""Pictures of the engine at work: steps, batches, waiting, throughput."""
