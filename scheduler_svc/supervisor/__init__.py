"""The supervisor: starts and watches the processes of a replica and hosts what exists once.

Reading order: run_folder, ports, child, hub, readiness, shutdown, supervisor.
"""
