"""Pictures of guessing ahead."""
