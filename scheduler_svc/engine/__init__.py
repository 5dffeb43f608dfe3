"""Drives the core: sockets, epochs, pacing, delivery. Schedules nothing itself.

Reading order:

1. `router`            a bound socket that never blocks
2. `step_codec`, `request_codec`, `news_codec`   messages to the core's values and back
3. `rank_group`, `worker_link`, `group_link`     epochs with the ranks; their supervisor
4. `pacing`            when the next plan goes out, when a step is overdue
5. `connection`, `frontend_link`                 numbered messages to and from frontends
6. `delivery`, `intake`, `holding`               news out, requests in, what must wait
7. `steps`, `desk`      the workers' half and the frontends' half of a turn
8. `condition`, `report`  what the core says about itself
9. `loop`              one turn after the other
10. `build`, `process` all of it, wired and run
"""
