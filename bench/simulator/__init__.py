"""The simulator: the real core, many replicas, simulated time. Computes no model, sends no message.

Reading order:

1. `clock`             what happens when
2. `prompts`, `jobs`   made-up tokens; requests and conversations;  `traces`, `trace_file`  arrivals
3. `cost`              how long a step takes on the GPU
4. `histogram`, `recorder`, `report`, `plots`   what is measured and shown
5. `worker`, `replica`        a replica around the real core
6. `fast_cache`, `fast_queue`, `fast_replica`   a replica that jumps over uneventful steps
7. `router`, `fleet`   many replicas and the clients in front of them
8. `scenarios`         the runs behind `docs/decisions/0002-scheduling-defaults.md`
"""
