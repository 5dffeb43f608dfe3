"""The core: sequences, KV blocks, prefix cache, step plans. Pure state; knows no socket, clock, text or tensor.

Time comes in as seconds on one monotonic clock, randomness as a root for the cache's hashes. Nothing here blocks.

Reading order:

1. `limits`       what the workers can hold, what the operator allows
2. `request`      a request and its outputs, each one sequence
3. `plan`, `news` what goes to the workers, what comes back, what the owners are told
4. `block_pool`   block ids and who holds them;  `prefix_cache`  which block holds which tokens
5. `batch`        the running batch, as columns by slot
6. `waiting`      who comes next;  `pace`  how many prompt tokens a step may take
7. `scheduler`    makes the next step;  `results`  takes a step's tokens in
8. `registry`     requests by name and by owner, how long they are kept
9. `core`         the one class the engine drives
"""
