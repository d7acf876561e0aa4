"""What a run will take, before anything is loaded: memory, time and disk, by formula."""
