"""`python -m scheduler_svc`: checks the settings, obtains the model, runs the replica."""

import asyncio
import dataclasses
import gc
import secrets
import socket
import sys
from collections.abc import Sequence

from octavo.models.errors import ModelError
from octavo.models.resolve import resolve_model
from scheduler_svc.config import InvalidConfig, ServiceConfig, parse_flags
from scheduler_svc.log import configure_logging
from scheduler_svc.security.ports import check_security_files
from scheduler_svc.supervisor.ports import AddressTaken, reserve_inference_address
from scheduler_svc.supervisor.progress_log import ProgressLog
from scheduler_svc.supervisor.replica import run_replica
from scheduler_svc.supervisor.run_folder import RunFolderInUse, open_run_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a replica; 0 after a drain, 1 when it failed, 2 when its settings are wrong."""
    try:
        config = parse_flags(
            sys.argv[1:] if arguments is None else arguments, program="octavo serve"
        )
        configure_logging(role="supervisor", level=config.log_level, form=config.log_format)
        check_security_files(config)
        config = _resolved(config)
    except (InvalidConfig, ModelError) as error:
        sys.stderr.write(f"octavo serve: {error}\n")
        return 2
    try:
        return _serve(config)
    except (AddressTaken, InvalidConfig, RunFolderInUse, OSError) as error:
        sys.stderr.write(f"octavo serve: {error}\n")
        return 2
    except KeyboardInterrupt:  # before the loop handles signals
        return 130


def _serve(config: ServiceConfig) -> int:
    address = reserve_inference_address(config)
    folder = open_run_folder(config.run_dir)
    try:
        gc.freeze()
        return asyncio.run(run_replica(config, run_dir=folder.path, address=address))
    finally:
        folder.remove()
        address.release()


def _resolved(config: ServiceConfig) -> ServiceConfig:
    model = resolve_model(config.model, progress=ProgressLog())
    return dataclasses.replace(
        config,
        model=str(model.path),
        served_model_name=config.served_model_name or model.name,
        replica=config.replica or f"{socket.gethostname()}-{secrets.token_hex(3)}",
    )


if __name__ == "__main__":
    sys.exit(main())
