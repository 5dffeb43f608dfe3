"""Sampling fields, resolved against the model's defaults. Knows nothing of prompts."""

import secrets

from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import DefaultSampling
from scheduler_svc.frontend.request import Sampling
from scheduler_svc.frontend.violations import Violations

MAX_TEMPERATURE = 100.0
GREEDY_BELOW = 1e-5
_FIELD = "generation.sampling"


def parse_sampling(
    sampling: api.SamplingParams,
    resume: api.Resume | None,
    *,
    defaults: DefaultSampling,
    limits: RequestLimits,
    violations: Violations,
) -> Sampling:
    """How tokens are chosen."""

    def share(name: str, value: float) -> float:
        return violations.number(f"{_FIELD}.{name}", value, least=0, most=1)

    temperature = violations.number(
        f"{_FIELD}.temperature",
        sampling.temperature if sampling.HasField("temperature") else defaults.temperature,
        least=0,
        most=MAX_TEMPERATURE,
    )
    top_k = sampling.top_k if sampling.HasField("top_k") else defaults.top_k
    if top_k < -1:
        violations.add(f"{_FIELD}.top_k", f"must be at least -1, got {top_k}")
    return Sampling(
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        # more than there are is all of them: off
        top_k=top_k if 0 < top_k < limits.vocab_size else 0,
        top_p=share("top_p", sampling.top_p if sampling.HasField("top_p") else defaults.top_p),
        min_p=share("min_p", sampling.min_p if sampling.HasField("min_p") else defaults.min_p),
        seed=_seed(sampling, resume, violations),
    )


def parse_num_outputs(
    sampling: api.SamplingParams, *, limits: RequestLimits, violations: Violations
) -> int:
    """How many outputs the prompt gets."""
    wanted = sampling.n if sampling.HasField("n") else 1
    return violations.integer(f"{_FIELD}.n", wanted, least=1, most=limits.max_outputs)


def _seed(sampling: api.SamplingParams, resume: api.Resume | None, violations: Violations) -> int:
    """The effective seed: the resumed one, the caller's, or one drawn now."""
    if resume is not None and resume.HasField("seed"):
        if sampling.HasField("seed") and sampling.seed != resume.seed:
            violations.add(
                "resume.seed", f"must be generation.sampling.seed, {sampling.seed}, or unset"
            )
        return resume.seed
    if sampling.HasField("seed"):
        return sampling.seed
    if resume is not None and any(output.token_ids for output in resume.outputs):
        violations.add("resume.seed", "is required when tokens were received")
    return secrets.randbits(64)
