"""GetModelInfo's answer. Knows nothing of requests."""

from octavo.installed import installed_version
from octavo.v1 import inference_pb2 as api
from scheduler_svc.frontend.limits import RequestLimits
from scheduler_svc.frontend.model import ServedModel


def model_info(
    model: ServedModel, limits: RequestLimits, *, replica: str
) -> api.GetModelInfoResponse:
    """What is served, with its limits and defaults."""
    sampling = model.default_sampling
    return api.GetModelInfoResponse(
        model=model.name,
        architecture=model.architecture,
        max_sequence_tokens=limits.max_sequence_tokens,
        vocab_size=model.vocab_size,
        num_tokenizer_ids=model.tokenizer.num_ids,
        eos_token_ids=sorted(model.tokenizer.eos_token_ids),
        has_chat_template=model.chat_template is not None,
        default_sampling=api.SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            n=1,
        ),
        replica=replica,
        version=installed_version(),
        max_outputs=limits.max_outputs,
        max_request_bytes=limits.max_request_bytes,
        max_top_logprobs=limits.max_top_logprobs,
        embedding_size=model.hidden_size,
        has_structured_output=limits.has_structured_output,
    )
