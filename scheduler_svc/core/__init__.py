"""The core: sequences, KV blocks, prefix cache, step plans. Knows no socket, clock, text or tensor.

Pure state: time comes in as seconds on one monotonic clock, randomness as a root for the cache's
hashes. Nothing here blocks.

Reading order:

1. `limits`, `refusals`       what bounds a request, and how the core says no
2. `request`, `sequence`      a request and its outputs, each one sequence
3. `plan`, `news`             what goes to the workers and comes back, what owners are told
4. `prefix_cache`             which block holds which tokens;  `block_pool` who holds which block
5. `batch`                    the running batch, as columns by slot
6. `epoch`                    all of that which is lost with the workers
7. `tenants`, `waiting`       who runs next;  `pace`, `steering`, `budget` how many prompt tokens a
                              step may take
   `census`, `stays`         what waits, by tenant; how long slots are held;  `tenant_hits`
8. `waiting_room`, `lifecycle` what happens to a sequence: waiting, start, preemption, end
9. `admission`, `scheduler`   makes the next step;  `results` takes a step's tokens in
10. `registry`, `ownership`   requests by name and owner, who reads them, how long they are kept
11. `checks`, `intake`        the way in;  `estimate`, `expectation` what a request would meet
    `listing`                 what lives, and why it waits
12. `core`                    the one class the engine drives
"""
