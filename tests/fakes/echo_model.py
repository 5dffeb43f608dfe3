"""A model that answers with the prompt's own words. Pure functions.

One character is one token, its id the code point.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from octavo.v1 import inference_pb2

SEED = 20_240_229
MODEL = "echo"


def prompt_text(prompt: inference_pb2.Prompt) -> str:
    """What the model reads: a chat is its messages' contents, joined by spaces."""
    match prompt.WhichOneof("kind"):
        case "text":
            return prompt.text
        case "token_ids":
            return "".join(chr(one) for one in prompt.token_ids.ids)
        case _:
            return " ".join(message.content for message in prompt.chat.messages)


def answer_to(generation: inference_pb2.Generation) -> str:
    """What the model answers."""
    answer = "You said: " + prompt_text(generation.prompt)
    return answer[: generation.stopping.max_tokens or len(answer)]


def words(text: str) -> list[str]:
    """The text cut behind each space."""
    return [word for word in text.replace(" ", " \0").split("\0") if word] or [""]


def chunks(
    generation: inference_pb2.Generation,
    *,
    replica: str,
    from_tokens: Sequence[int] = (),
    ended: Collection[int] = (),
) -> Iterator[inference_pb2.StreamChunk]:
    """A chunk for each of the answer's words; those with neither a start nor outputs bring nothing.

    Output i begins at from_tokens[i]; those in `ended` are left out. Any other that ended before
    says its finish again.
    """
    answer = answer_to(generation)
    num_outputs = generation.sampling.n or 1
    begins = [*from_tokens, *[0] * num_outputs][:num_outputs]
    position = 0
    for number, word in enumerate(words(answer)):
        end = position + len(word)
        chunk = inference_pb2.StreamChunk(request_id=generation.request_id)
        if number == 0:
            chunk.start.CopyFrom(_start(generation, replica=replica))
        for index, begin in enumerate(begins):
            if index in ended:
                continue
            fresh = answer[max(position, begin) : end]
            if fresh or end == len(answer):
                chunk.outputs.append(_delta(index, fresh, max(position, begin)))
            if end == len(answer):
                chunk.outputs[-1].finish.CopyFrom(_finish(generation))
        chunk.usage.prompt_tokens = len(prompt_text(generation.prompt))
        chunk.usage.completion_tokens = end * num_outputs
        yield chunk
        position = end


def whole(
    generation: inference_pb2.Generation, *, replica: str
) -> inference_pb2.GenerateUnaryResponse:
    """The answer in one message."""
    answer = list(chunks(generation, replica=replica))
    outputs = [
        inference_pb2.Output(
            index=last.index,
            text="".join(chunk.outputs[last.index].text for chunk in answer),
            token_ids=[one for chunk in answer for one in chunk.outputs[last.index].token_ids],
            finish=last.finish,
        )
        for last in answer[-1].outputs
    ]
    return inference_pb2.GenerateUnaryResponse(
        request_id=generation.request_id,
        start=answer[0].start,
        outputs=outputs,
        usage=answer[-1].usage,
    )


def _start(generation: inference_pb2.Generation, *, replica: str) -> inference_pb2.StreamStart:
    seed = generation.sampling.seed if generation.sampling.HasField("seed") else SEED
    return inference_pb2.StreamStart(
        seed=seed, replica=replica, model=MODEL, max_tokens=100, warnings=["an echo"]
    )


def _delta(index: int, text: str, first_token_index: int) -> inference_pb2.OutputDelta:
    ids = [ord(one) for one in text]
    return inference_pb2.OutputDelta(
        index=index, first_token_index=first_token_index, text=text, token_ids=ids
    )


def _finish(generation: inference_pb2.Generation) -> inference_pb2.Finish:
    answer = answer_to(generation)
    whole = answer_to(inference_pb2.Generation(prompt=generation.prompt))
    if len(answer) < len(whole):
        return inference_pb2.Finish(
            reason=inference_pb2.FINISH_REASON_LENGTH, num_tokens=len(answer)
        )
    return inference_pb2.Finish(
        reason=inference_pb2.FINISH_REASON_EOS, stop_token_id=0, num_tokens=len(answer)
    )
