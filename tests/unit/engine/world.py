"""Builds engines, ranks and frontends over one folder, and ends them all."""

from pathlib import Path

import zmq

from tests.unit.engine.running_engine import RunningEngine, ScriptedSupervisor
from tests.unit.engine.scripted_frontend import ScriptedFrontend
from tests.unit.engine.scripted_rank import Script, ScriptedRank


class World:
    """What one test uses. Groups are numbered from 1."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._engines: list[RunningEngine] = []
        self._ranks: list[ScriptedRank] = []
        self._frontends: list[ScriptedFrontend] = []
        self._supervisors: list[ScriptedSupervisor] = []

    def engine(self, **settings: object) -> RunningEngine:
        """A running engine."""
        engine = RunningEngine(self.run_dir, **settings)
        self._engines.append(engine)
        return engine.start()

    def rank(
        self, *, group: int = 1, script: Script | None = None, **facts: object
    ) -> ScriptedRank:
        """A running rank."""
        endpoint = f"ipc://{self.run_dir}/steps.sock"
        rank = ScriptedRank(endpoint, group=group, script=script, **facts)  # type: ignore[arg-type]
        self._ranks.append(rank)
        rank.start()
        return rank

    def frontend(self, name: str = "frontend-0", *, receive_limit: int = 1000) -> ScriptedFrontend:
        """A frontend that has said Hello."""
        endpoint = f"ipc://{self.run_dir}/engine.sock"
        frontend = ScriptedFrontend(self.context, endpoint, name)
        self._frontends.append(frontend)
        frontend.hello(receive_limit=receive_limit)
        return frontend

    def supervisor(self, engine: RunningEngine, *, group: int = 1) -> ScriptedSupervisor:
        """Both supervisors; tell them about the group that runs."""
        supervisor = ScriptedSupervisor(self.context, engine.endpoints, group)
        self._supervisors.append(supervisor)
        return supervisor

    def close(self) -> None:
        """Ends everything."""
        for rank in self._ranks:
            rank.stop()
        for frontend in self._frontends:
            frontend.close()
        for supervisor in self._supervisors:
            supervisor.close()
        for engine in self._engines:
            engine.stop()
        self.context.term()
