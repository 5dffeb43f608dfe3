"""What a request would meet if it came now: a question and its answer. Works nothing out."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """What of a request counts."""

    tenant: str
    tenant_weight: float = 1.0
    prompt: npt.NDArray[np.int32]
    priority: int = 0
    reads_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What it would meet."""

    num_cached_tokens: int
    num_requests_ahead: int
    num_tokens_ahead: int
    first_token_s: float | None  # None: nothing was measured
