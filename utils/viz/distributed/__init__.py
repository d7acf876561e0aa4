"""Pictures of models that are spread over GPUs: links, pipelines, experts, memory."""
