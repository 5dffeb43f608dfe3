"""Fetches a Hugging Face repository's model files into the Hugging Face cache, which other tools
share. Knows nothing of embedded models. The hub's own library draws its progress bars.
"""

from __future__ import annotations

from pathlib import Path

from octavo.models.errors import DownloadFailed, ModelNotFound
from octavo.models.packages import require_packages

# Config, tokenizer, template and weights; not the other formats that repositories carry.
ALLOW_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")
IGNORE_PATTERNS = ("*/*", "consolidated*")


def pull_model(repo_id: str, *, revision: str | None = None) -> Path:
    """Return the folder of the repository's files; download those that are not in the cache."""
    require_packages(("huggingface_hub",), purpose=f"downloading {repo_id}")
    # An optional extra of the SDK.
    from huggingface_hub import snapshot_download  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            repo_id,
            revision=revision,
            allow_patterns=list(ALLOW_PATTERNS),
            ignore_patterns=list(IGNORE_PATTERNS),
        )
    except HFValidationError as error:
        raise ModelNotFound(repo_id, f"not a repository id ({error})") from error
    except GatedRepoError as error:
        advice = "its owner asks for consent first: accept on huggingface.co, then set HF_TOKEN"
        raise ModelNotFound(repo_id, advice) from error
    except RepositoryNotFoundError as error:
        advice = "huggingface.co has no such repository, or it is private and HF_TOKEN is unset"
        raise ModelNotFound(repo_id, advice) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(repo_id, f"it has no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        reason = "huggingface.co cannot be reached (or HF_HUB_OFFLINE is set), and the cache"
        raise DownloadFailed(repo_id, f"{reason} has no complete copy") from error
    except Exception as error:
        raise DownloadFailed(repo_id, f"{type(error).__name__}: {error}") from error
    return Path(folder)
