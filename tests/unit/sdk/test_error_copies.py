"""Errors survive the way between processes: each class copied and pickled keeps all it says."""

import copy
import importlib
import pickle  # noqa: TID251 - users' process pools use it, the service does not
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import octavo
from octavo import errors
from octavo.models import errors as model_errors

# every module that defines errors, whatever other tests have imported before
for found in pkgutil.walk_packages(octavo.__path__, "octavo."):
    if found.name.endswith(".errors"):
        importlib.import_module(found.name)

MODEL_ERRORS: dict[type[errors.OctavoError], Callable[[], errors.OctavoError]] = {
    model_errors.ModelError: lambda: model_errors.ModelError("said"),
    model_errors.ModelNotFound: lambda: model_errors.ModelNotFound("tiny", "say which"),
    model_errors.ModelFolderInvalid: lambda: model_errors.ModelFolderInvalid(
        Path("/models/tiny"), ("config.json", "tokenizer.json")
    ),
    model_errors.ModelFileCorrupt: lambda: model_errors.ModelFileCorrupt(
        Path("/models/tiny/config.json"), "is not JSON"
    ),
    model_errors.DownloadFailed: lambda: model_errors.DownloadFailed("tiny", "no route"),
    model_errors.MissingPackage: lambda: model_errors.MissingPackage(("torch",), "serving"),
    model_errors.ModelBusy: lambda: model_errors.ModelBusy(Path("/models/tiny.lock"), 60.0),
}


def _kinds(kind: type[errors.OctavoError]) -> Iterator[type[errors.OctavoError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


def _example(kind: type[errors.OctavoError]) -> errors.OctavoError:
    if issubclass(kind, errors.ServiceError):
        return kind(
            "too long",
            code="INVALID_ARGUMENT",
            reason="RULE",
            request_id="r-1",
            is_resumable=True,
            is_retryable=True,
            retry_after_s=1.5,
            violations=[errors.Violation("prompt", "is too long")],
        )
    if issubclass(kind, errors.LocalServiceFailed):
        return kind("it ended", exit_code=3, log_lines=["first", "last"])
    if issubclass(kind, model_errors.ModelError):
        return MODEL_ERRORS[kind]()
    return kind("said")


def _pickled(error: errors.OctavoError) -> errors.OctavoError:
    loaded: errors.OctavoError = pickle.loads(pickle.dumps(error))
    return loaded


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, _pickled])
@pytest.mark.parametrize("kind", list(dict.fromkeys(_kinds(errors.OctavoError))))
def test_a_copy_says_all_that_the_error_says(
    kind: type[errors.OctavoError],
    copied: Callable[[errors.OctavoError], errors.OctavoError],
) -> None:
    error = _example(kind)
    error.add_note("seen by a pool")
    twin = copied(error)
    assert type(twin) is kind
    assert twin is not error
    assert str(twin) == str(error)
    assert twin.args == error.args
    assert vars(twin) == vars(error)
