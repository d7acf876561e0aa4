"""Other engines behind OpenAI's API, started like ours, and compared under one load."""
