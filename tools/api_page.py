"""docs/api.md: every call with an example in four languages, every field with its rules.

Made from the comments of the contract, from client/examples and from the frontend's errors. Knows
nothing of what the calls do.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from scheduler_svc.frontend import errors
from tools.proto_comments import Contract, Member, Method, Type, read_contract

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "client" / "examples"
HEAD = ROOT / "tools" / "api_head.md"
SOURCE = "octavo/v1/inference.proto"

_STATUS_HEAD = """
## How a call fails

| status | reason in `google.rpc.ErrorInfo` | what happened | resumable |
|---|---|---|---|
"""
_HOST = "127.0.0.1:50051"
_STATUS = re.compile(
    r"\b(NOT_FOUND|ALREADY_EXISTS|ABORTED|INTERNAL|INVALID_ARGUMENT|FAILED_PRECONDITION)\b"
)
_RULE = re.compile(
    r"Range|At (most|least)|Required|Exactly|[Mm]ust|Needs|Excludes|[Rr]efused|each 0 to|\d to \d"
)
_SENTENCE = re.compile(r"\.(?:\s+|$)")


def api_page() -> str:
    """The whole page."""
    contract = read_contract(SOURCE)
    requests = _requests()
    python = _python_bodies()
    asked = _asked_types(contract)
    head = HEAD.read_text(encoding="utf-8").replace("{contract}", _paragraphs(contract.comment))
    return "".join(
        [
            *(head, _STATUS_HEAD, *_status_rows(), "\n## Calls\n"),
            *(
                _method(one, contract.service, requests[one.name], python.get(one.name))
                for one in contract.methods
            ),
            "\n## Messages\n",
            *(_type(one, is_asked=one.name in asked) for one in contract.types.values()),
        ]
    )


def _paragraphs(comment: str) -> str:
    blocks = [" ".join(block.split()) for block in comment.split("\n\n")]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _status_rows() -> Iterator[str]:
    for kind in errors.CallError.__subclasses__():
        reason = f"`{kind.reason}`" if "reason" in vars(kind) else "says which"
        words = " ".join((kind.__doc__ or "").split())
        resumable = "yes" if kind.is_resumable else "no"
        yield f"| {kind.code.name} | {reason} | {words} | {resumable} |\n"


def _asked_types(contract: Contract) -> set[str]:
    """The types that a caller fills in."""
    waiting = [method.request for method in contract.methods]
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += [one.target for one in contract.types[name].members if one.target]
    return found


def _requests() -> dict[str, str]:
    """The example of each call, as it is written."""
    text = (EXAMPLES / "requests.json").read_text(encoding="utf-8")
    decoder = json.JSONDecoder()
    found: dict[str, str] = {}
    for name in json.loads(text):
        begin = text.index(f'"{name}": ') + len(f'"{name}": ')
        _, end = decoder.raw_decode(text, begin)
        found[name] = textwrap.dedent(f"  {text[begin:end]}")
    return found


def _method(method: Method, service: str, request: str, python: str | None) -> str:
    answer = f"[{method.response}](#{method.response.lower()})"
    kind = f"a stream of {answer}" if method.is_streamed else answer
    parts = [
        f"\n### {method.name}\n\n{method.comment}\n\n",
        f"[{method.request}](#{method.request.lower()}) → {kind}\n\n",
        _block("bash", f"grpcurl -plaintext -d '{request}' {_HOST} {service}/{method.name}"),
    ]
    if python:
        parts.append(_block("python", python))
    parts += [_block("go", _go(method, request)), _block("js", _node(method, request))]
    return "".join(parts)


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n\n"


def _go(method: Method, request: str) -> str:
    head = (
        f"request := &octavopb.{method.request}{{}}\n"
        f"err := protojson.Unmarshal([]byte(`{request}`), request)\n"
    )
    if method.is_streamed:
        return (
            f"{head}stream, err := client.{method.name}(ctx, request)\n"
            "for response, err := stream.Recv(); err == nil; response, err = stream.Recv() {\n"
            "\tfmt.Println(response)\n}"
        )
    return f"{head}response, err := client.{method.name}(ctx, request)\nfmt.Println(response)"


def _node(method: Method, request: str) -> str:
    call = f"const request = {request};\nclient.{method.name}(request"
    if method.is_streamed:
        return f'{call}).on("data", (response) => console.log(response));'
    return f"{call}, (error, response) => console.log(error ?? response));"


def _python_bodies() -> dict[str, str]:
    """What the functions of calls.py do, by the call that their first line names."""
    source = (EXAMPLES / "calls.py").read_text(encoding="utf-8")
    lines = source.splitlines()
    bodies = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name == "main":
            continue
        name = (ast.get_docstring(node) or "").split(":")[0].strip(".")
        first, last = node.body[1].lineno - 1, node.end_lineno
        body = "\n".join(line[4:] for line in lines[first:last])
        bodies[name] = body
    return bodies


def _type(one: Type, *, is_asked: bool) -> str:
    parts = [f"\n### {one.name}\n\n{one.comment}\n"]
    if not one.members:
        return "".join(parts)
    if one.is_enum:
        parts.append("\n| value | number | meaning |\n|---|---|---|\n")
        parts += [f"| `{m.name}` | {m.kind} | {_cell(m.comment)} |\n" for m in one.members]
    elif is_asked:
        parts.append("\n| field | type | meaning | range | default | error |\n")
        parts.append("|---|---|---|---|---|---|\n")
        parts += [_asked_row(member) for member in one.members]
    else:
        parts.append("\n| field | type | meaning |\n|---|---|---|\n")
        parts += [f"| `{m.name}` | {_kind(m)} | {_cell(m.comment)} |\n" for m in one.members]
    return "".join(parts)


def _asked_row(member: Member) -> str:
    meaning, ranges, default = [], [], ""
    for sentence in _sentences(member.comment):
        if sentence.startswith("Default: "):
            default = sentence.removeprefix("Default: ")
        elif sentence.startswith("Range: "):
            ranges.append(sentence.removeprefix("Range: "))
        elif sentence.startswith("At most "):
            ranges.append(sentence)
        elif sentence.startswith("Required"):
            default = f"none: {sentence[0].lower()}{sentence[1:]}"
        else:
            meaning.append(f"{sentence}.")
    statuses = _STATUS.findall(member.comment)
    if member.oneof or _RULE.search(member.comment):
        statuses.append("INVALID_ARGUMENT")
    cells = [
        f"`{member.name}`",
        _kind(member),
        _cell(" ".join(meaning)),
        _cell("; ".join(ranges)),
        _cell(default),
        ", ".join(dict.fromkeys(statuses)),
    ]
    return f"| {' | '.join(cells)} |\n"


def _sentences(comment: str) -> list[str]:
    return [one.strip() for one in _SENTENCE.split(comment) if one.strip()]


def _kind(member: Member) -> str:
    kind = member.kind.replace("<", "&lt;")
    if member.target:
        kind = kind.replace(member.target, f"[{member.target}](#{member.target.lower()})")
    return f"{kind} (one of `{member.oneof}`)" if member.oneof else kind


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
