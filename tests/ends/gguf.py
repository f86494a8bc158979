"""A small model of random numbers in llama.cpp's format (GGUF 3), and a real llama.cpp server that embeds with it.

Shaped as Qwen3-Embedding is: one layer, a token a byte, the last token's state as the vector. It means nothing, but the
server about it is the one that people run.
"""

import contextlib
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

DIMS: Final = 64
TOKENS: Final = 256  # of one input
START_WAIT_S: Final = 30.0
END_WAIT_S: Final = 10.0
_LAYER, _INNER, _HEADS, _SHARED, _HEAD = "blk.0.", 64, 2, 1, 32
_ALIGNMENT: Final = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # kinds of values
_FORMATS: Final = {_UINT32: "<I", _INT32: "<i", _FLOAT32: "<f", _BOOL: "<?"}
_F32: Final = 0  # a kind of tensor
_NORMAL, _CONTROL = 1, 3  # kinds of tokens
_LAST: Final = 3  # how a vector is made of the tokens' states

# Ends with its standard input, and so with whoever started it.
_SERVER: Final = """\
import os
import sys
import xllamacpp
told = xllamacpp.CommonParams()
told.model.path = sys.argv[1]
told.embedding = True
told.n_ctx = told.n_batch = told.n_ubatch = int(sys.argv[2])
told.n_parallel = 1
told.warmup = False
told.cpuparams.n_threads = told.cpuparams_batch.n_threads = 1
told.hostnames = ["127.0.0.1"]
told.port = 0
server = xllamacpp.Server(told)
print("listening", server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
"""


class Tensor(NamedTuple):
    """Random numbers of a scale, or ones; `shape` with what lies closest together first."""

    name: str
    shape: tuple[int, ...]
    scale: float | None  # None: ones


def write_model(path: Path) -> Path:
    """Writes the model to `path`, the same bytes each time."""
    drawn = random.Random(3)
    tokens = [*_alphabet(), "<|endoftext|>"]
    tensors = _tensors(len(tokens))
    entries = _entries(tokens)
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries)))
    for key, kind, value in entries:
        head += _text(key) + struct.pack("<I", kind) + _value(kind, value)
    data = bytearray()
    for tensor in tensors:
        head += _text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", _F32, len(data))
        data += _padded(_numbers(tensor, drawn))
    path.write_bytes(_padded(head) + data)
    return path


def _alphabet() -> list[str]:
    """The 256 bytes as the characters that stand for them in a vocabulary of GPT-2's kind."""
    plain = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _entries(tokens: list[str]) -> list[tuple[str, int, object]]:
    end = len(tokens) - 1
    return [
        ("general.architecture", _STRING, "qwen3"),
        ("general.name", _STRING, "random"),
        ("general.file_type", _UINT32, 0),
        ("qwen3.context_length", _UINT32, 32768),
        ("qwen3.embedding_length", _UINT32, DIMS),
        ("qwen3.block_count", _UINT32, 1),
        ("qwen3.feed_forward_length", _UINT32, _INNER),
        ("qwen3.attention.head_count", _UINT32, _HEADS),
        ("qwen3.attention.head_count_kv", _UINT32, _SHARED),
        ("qwen3.attention.key_length", _UINT32, _HEAD),
        ("qwen3.attention.value_length", _UINT32, _HEAD),
        ("qwen3.attention.layer_norm_rms_epsilon", _FLOAT32, 1e-6),
        ("qwen3.rope.freq_base", _FLOAT32, 1e6),
        ("qwen3.pooling_type", _UINT32, _LAST),
        ("tokenizer.ggml.model", _STRING, "gpt2"),
        ("tokenizer.ggml.pre", _STRING, "qwen2"),
        ("tokenizer.ggml.tokens", _ARRAY, (_STRING, tokens)),
        ("tokenizer.ggml.token_type", _ARRAY, (_INT32, [_NORMAL] * end + [_CONTROL])),
        ("tokenizer.ggml.merges", _ARRAY, (_STRING, [])),
        ("tokenizer.ggml.bos_token_id", _UINT32, end),
        ("tokenizer.ggml.eos_token_id", _UINT32, end),
        ("tokenizer.ggml.padding_token_id", _UINT32, end),
        ("tokenizer.ggml.add_bos_token", _BOOL, False),
        ("tokenizer.ggml.add_eos_token", _BOOL, True),
    ]


def _tensors(tokens: int) -> list[Tensor]:
    return [
        Tensor("token_embd.weight", (DIMS, tokens), 1.0),
        Tensor("output_norm.weight", (DIMS,), None),
        Tensor(f"{_LAYER}attn_norm.weight", (DIMS,), None),
        Tensor(f"{_LAYER}attn_q.weight", (DIMS, _HEADS * _HEAD), 0.2),
        Tensor(f"{_LAYER}attn_k.weight", (DIMS, _SHARED * _HEAD), 0.2),
        Tensor(f"{_LAYER}attn_v.weight", (DIMS, _SHARED * _HEAD), 0.2),
        Tensor(f"{_LAYER}attn_output.weight", (_HEADS * _HEAD, DIMS), 0.2),
        Tensor(f"{_LAYER}attn_q_norm.weight", (_HEAD,), None),
        Tensor(f"{_LAYER}attn_k_norm.weight", (_HEAD,), None),
        Tensor(f"{_LAYER}ffn_norm.weight", (DIMS,), None),
        Tensor(f"{_LAYER}ffn_gate.weight", (DIMS, _INNER), 0.2),
        Tensor(f"{_LAYER}ffn_up.weight", (DIMS, _INNER), 0.2),
        Tensor(f"{_LAYER}ffn_down.weight", (_INNER, DIMS), 0.2),
    ]


def _numbers(tensor: Tensor, drawn: random.Random) -> bytes:
    count = 1
    for size in tensor.shape:
        count *= size
    told: Sequence[float] = [1.0] * count
    if tensor.scale is not None:
        told = [drawn.gauss(0, tensor.scale) for _ in range(count)]
    return struct.pack(f"<{count}f", *told)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: object) -> bytes:
    if kind == _STRING:
        return _text(str(value))
    if isinstance(value, tuple):
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack(_FORMATS[kind], value)


def _padded(data: bytes | bytearray) -> bytes:
    return bytes(data) + bytes(-len(data) % _ALIGNMENT)


@contextlib.contextmanager
def llama_server(folder: Path) -> Iterator[str]:
    """The address of a llama.cpp server in a child process, with a model that is written to `folder`.

    Needs the wheel `xllamacpp`. What the server says goes to `llama.log` in `folder`. Inputs over TOKENS are refused.
    """
    model = write_model(folder / "random.gguf")
    with (folder / "llama.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", _SERVER, str(model), str(TOKENS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        late = threading.Timer(START_WAIT_S, child.kill)
        late.start()
        try:
            assert child.stdout and child.stdin
            for line in child.stdout:
                if line.startswith(b"listening "):
                    break
            else:
                raise AssertionError((folder / "llama.log").read_text("utf-8", "replace")[-2000:])
            late.cancel()
            yield f"{line.split()[1].decode()}/v1"
        finally:
            late.cancel()
            try:
                child.communicate(timeout=END_WAIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()
