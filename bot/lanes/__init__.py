"""Host side of jobs: trees on disk, processes, limits, evidence. Never imports torch."""
