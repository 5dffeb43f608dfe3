"""The load generator behind `octavo bench`: workloads, senders, numbers, pictures."""
