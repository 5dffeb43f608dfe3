"""From a step to its sampled tokens: batch building, cache memory, forward, sampling."""
